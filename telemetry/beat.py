"""When to read next: on a steady beat, or later after failures."""

from __future__ import annotations

from energyopt.core.clock import Clock
from energyopt.core.units import Seconds

MAX_BACKOFF = 10.0
"""Seconds between attempts on a source that keeps failing: a driver that comes back is seen within this time."""


class Beat:
    """The next due time of one source. ``overruns`` counts beats that had passed before the source was done."""

    def __init__(self, clock: Clock, period: Seconds) -> None:
        self._clock = clock
        self._period = period
        self._due = float(clock.now())
        self.overruns = 0

    @property
    def wait(self) -> Seconds:
        """Seconds until due; 0 if it is."""
        return Seconds(max(0.0, self._due - self._clock.now()))

    def advance(self, failures: int) -> None:
        """Set the next due time: one period on, or after a pause that doubles with every failure in a row.

        Beats that were missed are not caught up.
        """
        now = self._clock.now()
        if failures:
            self._due = now + min(MAX_BACKOFF, self._period * 2 ** min(failures, 16))
            return
        self._due += self._period
        if self._due <= now:
            self.overruns += 1
            self._due = now + self._period
