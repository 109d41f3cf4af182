"""When to read next: on a steady beat, or later after failures."""

from __future__ import annotations

import math

from energyopt.core.clock import Clock
from energyopt.core.units import Seconds

MAX_BACKOFF = 10.0
"""Seconds between attempts on a source that keeps failing: a driver that comes back is seen within this time."""
EARLY = 0.25
"""Share of a period before a beat within which a reading that was of no beat, or ends after its next, counts for it."""


class Beat:
    """``due`` is when one source is to be read next. ``overruns`` counts beats that had passed before it was done.

    Beats lie at multiples of the period of the clock, so that the threads of all sources wake together: eight that
    wake on their own cost two to three times as much.
    """

    def __init__(self, clock: Clock, period: Seconds) -> None:
        self._clock = clock
        self._period = period
        self.due = float(clock.now())
        self._regular = False
        self.overruns = 0

    @property
    def wait(self) -> Seconds:
        """Seconds until due; 0 if it is, to the microsecond."""
        left = self.due - self._clock.now()
        return Seconds(left if left > 1e-6 else 0.0)

    def advance(self, failures: int) -> None:
        """Set the next due time: the next beat, or after a pause that doubles with every failure in a row.

        Beats that were missed are not caught up, but a reading that was done before the next beat, however late it
        was, misses none.
        """
        now, period = self._clock.now(), self._period
        if failures:
            self.due, self._regular = now + min(MAX_BACKOFF, period * 2 ** min(failures, 16)), False
            return
        served = round(self.due / period) if self._regular else -1
        if now >= (served + 1) * period:
            served = math.floor(now / period + EARLY)
        following = (served + 1) * period
        if self._regular and following - self.due > (2 - EARLY) * period:
            self.overruns += 1
        self.due, self._regular = following, True
