"""Time as a dependency: a monotonic clock for measuring and a fake one for tests and simulation.

All ``start``/``end`` stamps in records are seconds of ``Clock.now()``. On Linux the monotonic clock is one per
machine, so stamps of different processes of one host compare; its zero is arbitrary, so it is never stored as a date.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from .units import Seconds


class Clock(Protocol):
    """What a component may ask of time."""

    def now(self) -> Seconds:
        """Monotonic seconds, never stepped by NTP."""
        ...

    def utc(self) -> datetime:
        """The date, time-zone aware, for stamps a person reads."""
        ...

    def sleep(self, duration: Seconds) -> None:
        """Block the calling thread; a duration <= 0 returns at once."""
        ...


class MonotonicClock:
    """The real clock."""

    def now(self) -> Seconds:
        return Seconds(time.monotonic())

    def utc(self) -> datetime:
        return datetime.now(UTC)

    def sleep(self, duration: Seconds) -> None:
        if duration > 0:
            time.sleep(duration)


class FakeClock:
    """A clock that moves only when told to: ``sleep`` advances it and returns at once."""

    def __init__(self, start: float = 0.0, *, date: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._now = start
        self._date = date

    def now(self) -> Seconds:
        return Seconds(self._now)

    def utc(self) -> datetime:
        return self._date + timedelta(seconds=self._now - self._start)

    def sleep(self, duration: Seconds) -> None:
        if duration > 0:
            self._now += duration

    def advance(self, duration: float) -> None:
        """Move time forward. Raises ValueError on a negative duration: time does not run backward."""
        if duration < 0:
            raise ValueError(f"cannot advance a clock by {duration} s; durations are >= 0.")
        self._now += duration
