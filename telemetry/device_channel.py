"""One device's status over time: the newest look, its health, and throttle time that never falls."""

from __future__ import annotations

import logging
from threading import Lock

from energyopt.core.clock import Clock
from energyopt.core.errors import SensorError
from energyopt.core.units import Seconds

from .beat import Beat
from .ports import StatusSource
from .status import DeviceInfo, DeviceStatus, Throttle

log = logging.getLogger(__name__)

PERIOD = Seconds(2.0)
"""Seconds between looks. Limits, clocks and temperatures are for people and rules, which need no more; a scrape comes
every 5 to 15 s, and throttle time is cumulative."""


class DeviceChannel:
    """Looks at one device on a beat. ``status`` is None while the device does not answer: no old value is kept.

    ``take`` may be called from any thread.
    """

    def __init__(self, source: StatusSource, clock: Clock, period: Seconds = PERIOD) -> None:
        self.source = source
        self.status: DeviceStatus | None = None
        self.failure: str | None = None
        self.closed = False
        self.throttled: dict[Throttle, float] = {}
        self._driver: dict[Throttle, Seconds] = {}
        self._beat = Beat(clock, period)
        self._reading = Lock()
        self._failures = 0

    @property
    def info(self) -> DeviceInfo:
        return self.source.info

    @property
    def up(self) -> bool:
        """True if the last look succeeded."""
        return self.status is not None

    @property
    def wait(self) -> Seconds:
        """Seconds until the next look."""
        return self._beat.wait

    def take(self) -> bool:
        """Look now. False if it failed, if closed, or if another thread is looking."""
        if self.closed or not self._reading.acquire(blocking=False):
            return False
        try:
            return self._take()
        finally:
            self._reading.release()

    def keep_pace(self) -> None:
        """Set the time of the next look."""
        self._beat.advance(self._failures)

    def close(self) -> None:
        """Look no more. A call that hangs in the driver keeps its handle: pulling it away would crash the process."""
        self.closed = True
        if self._reading.acquire(blocking=False):
            try:
                self.source.close()
            finally:
                self._reading.release()

    def _take(self) -> bool:
        try:
            status = self.source.read()
        except SensorError as error:
            self._fail(str(error))
            return False
        except Exception as error:  # a driver's binding may raise anything; it must not end the thread unseen
            log.exception("Looking at %s raised an unexpected error.", self.info.device)
            self._fail(f"{type(error).__name__}: {error}")
            return False
        self._count(status)
        self.status, self.failure, self._failures = status, None, 0
        return True

    def _count(self, status: DeviceStatus) -> None:
        """Add what the driver's own counters grew by; one that fell has restarted, and what it shows now is new."""
        for reason, total in status.throttle_time.items():
            before = self._driver.get(reason, total)
            grown = total - before if total >= before else total
            self.throttled[reason] = self.throttled.get(reason, 0.0) + grown
            self._driver[reason] = total

    def _fail(self, words: str) -> None:
        self.status, self.failure = None, words
        self._failures += 1
