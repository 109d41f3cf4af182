"""How long a refused client should wait: an estimate from how fast requests have been ending."""

from __future__ import annotations

from collections import deque

from energyopt.core.units import Seconds

SHORTEST, LONGEST, UNKNOWN = Seconds(0.1), Seconds(60.0), Seconds(1.0)


class Turnover:
    """The mean time between the ends of the last requests. Written by one thread, read by any."""

    def __init__(self, window: int = 32) -> None:
        self._ends: deque[Seconds] = deque(maxlen=window)
        self._interval: float | None = None

    def ended(self, at: Seconds) -> None:
        self._ends.append(at)
        if len(self._ends) > 1:
            self._interval = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)

    def retry_after(self) -> Seconds:
        """When the next place is likely free: within 0.1 to 60 s, 1 s while nothing is known."""
        if self._interval is None:
            return UNKNOWN
        return Seconds(min(max(self._interval, SHORTEST), LONGEST))
