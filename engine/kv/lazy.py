"""Lazy stores: a block goes down only when its place on the device is about to be reused."""

from __future__ import annotations

from .blocks import BlockPool
from .inflight import tier_key
from .ports import Transfer


class LazyOffers:
    """Looks ``reserve`` blocks ahead of the pool's reuse. ``reserve`` shall cover what two steps allocate.

    A block that was offered is not offered again before its content changes.
    """

    def __init__(self, pool: BlockPool, reserve: int) -> None:
        self._pool = pool
        self._reserve = reserve
        self._offered: dict[int, bytes] = {}

    def due(self) -> list[Transfer]:
        """Cached blocks that are next to be reused and were not offered yet."""
        if self._pool.num_free >= self._reserve:
            return []
        fresh = [
            (block, name, group)
            for block, name, group in self._pool.next_reused(self._reserve)
            if self._offered.get(block) != name
        ]
        self._offered.update((block, name) for block, name, _ in fresh)
        return [Transfer(tier_key(name, group), block) for block, name, group in fresh]
