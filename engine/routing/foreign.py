"""Blocks that another engine names by hashes of its own, as the names by which prompts are looked up here.

Its events say which tokens a block holds and which block comes before it: so the chain is named anew, token by token,
and what the hashes are made of need not be known.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from ..kv.hashing import BlockHasher

Hash = int | bytes
"""A block's name over there."""


class ForeignNames:
    """The names of one engine's blocks of ``block_tokens`` tokens; ``max_blocks`` of them are remembered."""

    def __init__(self, block_tokens: int, max_blocks: int) -> None:
        self.block_tokens = block_tokens
        self._hasher = BlockHasher(block_tokens)
        self._max = max_blocks
        self._names: OrderedDict[Hash, bytes] = OrderedDict()

    def stored(self, hashes: Sequence[Hash], parent: Hash | None, tokens: Sequence[int]) -> list[bytes]:
        """The names of blocks that hold ``tokens`` and follow ``parent`` (None: nothing).

        Empty where the chain's beginning was never heard of, or where hashes and tokens do not go together.
        """
        before = self._names.get(parent) if parent is not None else None
        if (parent is not None and before is None) or len(tokens) != len(hashes) * self.block_tokens:
            return []
        chain = [] if before is None else [before]
        self._hasher.extend(chain, tokens)
        names = chain[0 if before is None else 1 :]
        for foreign, name in zip(hashes, names, strict=True):
            self._names[foreign] = name
            self._names.move_to_end(foreign)
        while len(self._names) > self._max:
            self._names.popitem(last=False)
        return names

    def of(self, hashes: Iterable[Hash]) -> list[bytes]:
        """The names of those that were heard of. A name stays known when its block goes: another tier may have it."""
        return [self._names[one] for one in hashes if one in self._names]
