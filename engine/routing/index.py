"""Which worker holds which blocks, by name, in which tier: fed by engines' events or by what was sent there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

TIERS = ("device", "host", "disk", "shared")
"""Fastest first: a block in several counts for the first."""
_BIT = {tier: 1 << place for place, tier in enumerate(TIERS)}
_BEST = {bits: next(tier for tier in TIERS if bits & _BIT[tier]) for bits in range(1, 1 << len(TIERS))}


class PrefixIndex:
    """Block names by worker; each worker keeps ``max_blocks`` at most and forgets the least recently used first.

    A lookup takes time in proportion to what is found, not to what is kept.
    """

    def __init__(self, max_blocks: int) -> None:
        self._max = max_blocks
        self._held: dict[str, OrderedDict[bytes, int]] = {}

    def overlap(self, worker: str, names: Sequence[bytes]) -> Mapping[str, int]:
        """Leading blocks of ``names`` that a worker holds, by the fastest tier that has each."""
        held = self._held.get(worker)
        found: dict[str, int] = {}
        if not held:
            return found
        for name in names:
            bits = held.get(name)
            if bits is None:
                break
            tier = _BEST[bits]
            found[tier] = found.get(tier, 0) + 1
        return found

    def stored(self, worker: str, names: Iterable[bytes], tier: str = "device") -> None:
        """A worker keeps these blocks; names of a chain come head first, and its tail is forgotten first."""
        held, bit = self._held.setdefault(worker, OrderedDict()), _BIT[tier]
        for name in reversed(tuple(names)):
            held[name] = held.get(name, 0) | bit
            held.move_to_end(name)
        while len(held) > self._max:
            held.popitem(last=False)

    def removed(self, worker: str, names: Iterable[bytes], tier: str = "device") -> None:
        """A worker no longer keeps these blocks in that tier."""
        held, bit = self._held.get(worker), _BIT[tier]
        if held is None:
            return
        for name in names:
            bits = held.get(name, 0) & ~bit
            if bits:
                held[name] = bits
            else:
                held.pop(name, None)

    def cleared(self, worker: str, tier: str | None = None) -> None:
        """A worker forgot a tier, or everything."""
        held = self._held.get(worker)
        if held is None or tier is None:
            self._held.pop(worker, None)
        else:
            self.removed(worker, tuple(held), tier)

    def size(self, worker: str) -> int:
        """Blocks that a worker is known to hold."""
        return len(self._held.get(worker, ()))
