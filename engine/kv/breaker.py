"""When to leave a store alone: after a failure for a while, longer each time, then one more try."""

from __future__ import annotations

import threading

from energyopt.core.clock import Clock

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds; doubled from failure to failure."""


class Breaker:
    """Open (leave it alone) for a pause after each failure; a success ends the series. Thread-safe."""

    def __init__(self, clock: Clock, *, first: float = FIRST_PAUSE, longest: float = LONGEST_PAUSE) -> None:
        self._clock = clock
        self._first = first
        self._longest = longest
        self._pause = 0.0
        self._until = 0.0
        self._lock = threading.Lock()

    @property
    def open(self) -> bool:
        return self._pause > 0.0 and self._clock.now() < self._until

    def failed(self) -> bool:
        """True if this failure opened it: the moment to warn."""
        with self._lock:
            if self.open:
                return False
            self._pause = min(self._longest, self._pause * 2) or self._first
            self._until = self._clock.now() + self._pause
            return True

    def succeeded(self) -> bool:
        """True if this ended a series of failures."""
        with self._lock:
            was_failing = self._pause > 0.0
            self._pause = 0.0
            return was_failing
