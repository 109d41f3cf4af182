"""Names for the leading parts of a prompt: the engine's own where its tokens are known, else of the text itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xxhash import xxh3_128_digest

from ..kv.hashing import BlockHasher

CHUNK_BYTES = 256
"""Text in one part: long enough to be cheap, short against prompts whose cache is worth a detour."""
BYTES_PER_TOKEN = 4
"""Of English text and code, with the vocabularies of today: what turns bytes into tokens where nothing counts them."""
CHUNK_TOKENS = CHUNK_BYTES // BYTES_PER_TOKEN


@dataclass(frozen=True, slots=True)
class Scheme:
    """How an engine names its blocks: ``block_tokens`` a block, hashed in steps of ``unit`` tokens (it divides them).

    The names are ``BlockHasher``'s; see ``engine.kv.hashing``.
    """

    block_tokens: int
    unit: int


@dataclass(slots=True)
class Prompt:
    """A prompt as routing sees it: its text in one canonical form, and its token ids where they are known.

    Names are made when they are asked for, and once.
    """

    text: bytes = b""
    ids: Sequence[int] | None = None
    _chunks: list[bytes] | None = None
    _blocks: dict[Scheme, list[bytes]] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Counted, or estimated from the text's length."""
        return len(self.ids) if self.ids is not None else -(-len(self.text) // BYTES_PER_TOKEN)

    @property
    def key(self) -> bytes:
        """Names the beginning; b"" for a prompt too short to have a first part."""
        chunks = self.chunks()
        return chunks[0] if chunks else b""

    def chunks(self) -> list[bytes]:
        """A chained name for each whole part of ``CHUNK_BYTES`` (``CHUNK_TOKENS`` tokens)."""
        if self._chunks is None:
            self._chunks = name_ids(self.ids) if self.ids is not None else name_text(self.text)
        return self._chunks

    def blocks(self, scheme: Scheme) -> list[bytes] | None:
        """The engine's names of the whole blocks; None without token ids."""
        if self.ids is None:
            return None
        if scheme not in self._blocks:
            units: list[bytes] = []
            BlockHasher(scheme.unit).extend(units, self.ids)
            per_block = scheme.block_tokens // scheme.unit
            self._blocks[scheme] = units[per_block - 1 :: per_block]
        return self._blocks[scheme]


def name_text(text: bytes) -> list[bytes]:
    """Each name covers its own part and, through the one before it, everything earlier.

    The names stay in the router, where one that was made to equal another's leads to a worker with less of a prefix and
    to nothing else: so they need no cryptographic hash, which takes three times as long.
    """
    names: list[bytes] = []
    parent = b"text"
    for start in range(0, len(text) - CHUNK_BYTES + 1, CHUNK_BYTES):
        parent = xxh3_128_digest(parent + text[start : start + CHUNK_BYTES])
        names.append(parent)
    return names


def name_ids(ids: Sequence[int]) -> list[bytes]:
    """As many tokens a part as ``name_text`` takes one to have."""
    names: list[bytes] = []
    BlockHasher(CHUNK_TOKENS, salt=b"router").extend(names, ids)
    return names
