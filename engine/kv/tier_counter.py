"""Counters of one tier that several threads add to."""

from __future__ import annotations

import threading
from collections import Counter

from .ports import TierCounts


class TierCounter:
    """What one tier did since start. Blocks, bytes and seconds only grow."""

    def __init__(self, tier: str) -> None:
        self.tier = tier
        self._lock = threading.Lock()
        self._numbers: Counter[str] = Counter()
        self._seconds: dict[str, float] = {"load": 0.0, "store": 0.0}
        self._failures: Counter[str] = Counter()

    def hit(self, blocks: int) -> None:
        """Loads of ``blocks`` were begun."""
        with self._lock:
            self._numbers["hits"] += blocks

    def loaded(self, blocks: int, size: int, seconds: float) -> None:
        """``blocks`` of ``size`` bytes in all were read, well or not."""
        with self._lock:
            self._numbers["loads"] += blocks
            self._numbers["load_bytes"] += size
            self._seconds["load"] += seconds

    def stored(self, blocks: int, size: int, seconds: float) -> None:
        with self._lock:
            self._numbers["stores"] += blocks
            self._numbers["store_bytes"] += size
            self._seconds["store"] += seconds

    def evicted(self, blocks: int = 1) -> None:
        with self._lock:
            self._numbers["evictions"] += blocks

    def failed(self, reason: str, blocks: int = 1) -> None:
        with self._lock:
            self._failures[reason] += blocks

    def snapshot(self) -> TierCounts:
        with self._lock:
            n = self._numbers
            return TierCounts(
                tier=self.tier,
                hits=n["hits"],
                loads=n["loads"],
                stores=n["stores"],
                load_bytes=n["load_bytes"],
                store_bytes=n["store_bytes"],
                load_seconds=self._seconds["load"],
                store_seconds=self._seconds["store"],
                evictions=n["evictions"],
                failures=dict(self._failures),
            )
