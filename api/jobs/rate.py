"""How often one caller may ask: a bucket of tokens for each, in the memory of this process."""

from __future__ import annotations

from collections import OrderedDict

from energyopt.core.clock import Clock

MAX_CALLERS = 10_000
"""Buckets that are kept; the one unused for longest goes first, and is full again when it comes back."""


class RateLimit:
    """``take`` says how long ``caller`` has to wait: 0 if it may ask now."""

    def __init__(self, clock: Clock, *, rate: float, burst: int) -> None:
        self._clock, self._rate, self._burst = clock, rate, float(burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> float:
        now = self._clock.now()
        level, since = self._buckets.pop(caller, (self._burst, now))
        level = min(self._burst, level + (now - since) * self._rate)
        wait = 0.0 if level >= 1 else (1 - level) / self._rate
        self._buckets[caller] = (level - 1 if wait == 0 else level, now)
        if len(self._buckets) > MAX_CALLERS:
            self._buckets.popitem(last=False)
        return wait
