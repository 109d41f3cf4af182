"""Names for KV blocks: a chained hash over token ids, the same in every process and on every machine.

A block's hash covers its own tokens and, through its parent's hash, every token before it; equal hashes therefore
mean equal KV. Only full blocks have one. Nothing here depends on Python's own ``hash``.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Sequence

from energyopt.core.errors import ConfigError

DIGEST_BYTES = 16
"""128 bits: an accidental collision among 2^40 blocks has probability below 2^-48."""


class BlockHasher:
    """Extends lists of block hashes.

    ``salt`` separates caches that must not share (another model, another tenant); so does another ``block_tokens``.
    The hash of a block is BLAKE2b over its parent's hash and its token ids as little-endian 32-bit numbers.
    """

    def __init__(self, block_tokens: int, *, salt: bytes = b"") -> None:
        if block_tokens < 1:
            raise ConfigError(f"block_tokens = {block_tokens} is not allowed: it must be at least 1.")
        self.block_tokens = block_tokens
        self._blank = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self.root = self._digest(b"kv-block-1/%d/" % block_tokens + salt)

    def extend(self, hashes: list[bytes], tokens: Sequence[int]) -> None:
        """Append to ``hashes`` the hash of every full block in ``tokens``.

        ``tokens`` are the ids that follow the blocks already in ``hashes``; a last, partial block gets none. Ids are
        in 0 .. 2^32-1.
        """
        words = array("I", tokens)
        if sys.byteorder == "big":
            words.byteswap()
        data, size = words.tobytes(), self.block_tokens * words.itemsize
        parent = hashes[-1] if hashes else self.root
        blank, append = self._blank.copy, hashes.append  # ``_digest`` written out: a prompt may have 10^5 blocks
        for start in range(0, len(data) - size + 1, size):
            state = blank()
            state.update(parent + data[start : start + size])
            parent = state.digest()
            append(parent)

    def _digest(self, data: bytes) -> bytes:
        # Copying an empty hash object costs a third of making one with its parameters.
        state = self._blank.copy()
        state.update(data)
        return state.digest()
