"""One device's status over time: the newest look, its health, and throttle time that never falls."""

from __future__ import annotations

from energyopt.core.clock import Clock
from energyopt.core.units import Seconds

from .ports import StatusSource
from .reader import Reader
from .status import DeviceInfo, DeviceStatus, Throttle

PERIOD = Seconds(2.0)
"""Seconds between looks. Limits, clocks and temperatures are for people and rules, which need no more; a scrape comes
every 5 to 15 s, and throttle time is cumulative."""


class DeviceChannel(Reader):
    """Looks at one device on a beat."""

    def __init__(self, source: StatusSource, clock: Clock, period: Seconds = PERIOD) -> None:
        super().__init__(f"the status of {source.info.device}", source.close, clock, period)
        self.source = source
        self._seen: DeviceStatus | None = None
        self.throttled: dict[Throttle, float] = {}
        self._driver: dict[Throttle, Seconds] = {}

    @property
    def info(self) -> DeviceInfo:
        return self.source.info

    @property
    def status(self) -> DeviceStatus | None:
        """The newest look; None while the device does not answer, rather than its last words for ever."""
        return self._seen if self._failures_in_row == 0 else None

    @property
    def up(self) -> bool:
        """True if the last look succeeded."""
        return self.status is not None

    def _read(self) -> None:
        status = self.source.read()
        self._count(status)
        self._seen = status

    def _count(self, status: DeviceStatus) -> None:
        """Add what the driver's own counters grew by; one that fell has restarted, and what it shows now is new."""
        for reason, total in status.throttle_time.items():
            before = self._driver.get(reason, total)
            grown = total - before if total >= before else total
            self.throttled[reason] = self.throttled.get(reason, 0.0) + grown
            self._driver[reason] = total
