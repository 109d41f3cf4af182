"""A GPU that is not there: its power follows the SM clock, the cap and the load.

``PowerCurve`` is CMOS in its usual form: switching power goes with voltage squared times clock; the voltage is at its
lowest up to a knee and rises linearly above it. The constants stand for a board of 700 W and are nobody's measurement;
what is tested against it must not depend on them.

``Plant`` is such a board on a clock of its own, with exact energy, behind the same port as a driver.
"""

from __future__ import annotations

from dataclasses import dataclass

from energyopt.core.clock import Clock
from energyopt.core.errors import ControlError
from energyopt.core.units import Hertz, Joules, Seconds, Watts

from .ports import DeviceLimits, DriverLife

TOP, LOWEST, STEP = Hertz(1.98e9), Hertz(0.21e9), Hertz(15e6)
IDLE, UNCORE, CORE = Watts(120.0), Watts(180.0), Watts(400.0)


@dataclass(frozen=True, slots=True)
class PowerCurve:
    """``idle`` always; at full load ``uncore`` whatever the clock is, and ``core`` at the top clock."""

    idle: Watts = IDLE
    uncore: Watts = UNCORE
    core: Watts = CORE
    top: Hertz = TOP
    knee: float = 0.6
    lowest_voltage: float = 0.7

    def power(self, clock: Hertz, load: float) -> Watts:
        """At a load between 0 and 1."""
        share = clock / self.top
        rise = max(0.0, share - self.knee) / (1 - self.knee)
        voltage = self.lowest_voltage + (1 - self.lowest_voltage) * rise
        return Watts(self.idle + load * (self.uncore + self.core * share * voltage * voltage))

    def clock_under(self, cap: Watts, ceiling: Hertz, load: float) -> Hertz:
        """The highest clock, in the driver's steps below ``ceiling``, whose power keeps the cap; else the lowest."""
        clock = ceiling
        while clock > LOWEST and self.power(clock, load) > cap:
            clock = Hertz(clock - STEP)
        return Hertz(max(clock, LOWEST))


class Plant:
    """One board under any identity. ``load`` is what the engine on it does at the moment, between 0 and 1."""

    def __init__(self, clock: Clock, curve: PowerCurve | None = None, *, found: Watts = Watts(700.0)) -> None:
        self._clock = clock
        self._curve = curve or PowerCurve()
        self._load = 0.0
        self._requested = found
        self._ceiling = self._curve.top
        self._since = clock.now()
        self._spent = Joules(0.0)

    @property
    def sm_clock(self) -> Hertz:
        """What the board runs at: under its ceiling and its cap."""
        return self._curve.clock_under(self._requested, self._ceiling, self._load)

    @property
    def power(self) -> Watts:
        return self._curve.power(self.sm_clock, self._load)

    @property
    def joules(self) -> Joules:
        """Since the start, exact."""
        self._settle()
        return self._spent

    def set_load(self, load: float) -> None:
        self._settle()
        self._load = load

    def limits(self, device: str) -> DeviceLimits:
        asked = self._requested
        return DeviceLimits(asked, asked, Watts(200.0), Watts(700.0), self._curve.top, Watts(700.0), True)

    def set_cap(self, device: str, cap: Watts) -> None:
        if not 200.0 <= cap <= 700.0:
            raise ControlError(f"{device}: Invalid Argument.")
        self._settle()
        self._requested = cap

    def clocks(self, device: str) -> str | None:
        return None

    def lock_clock(self, device: str, ceiling: Hertz) -> None:
        self._settle()
        self._ceiling = Hertz(min(self._curve.top, max(LOWEST, ceiling)))

    def unlock_clock(self, device: str, found: str | None) -> None:
        self._settle()
        self._ceiling = self._curve.top

    def life(self, device: str) -> DriverLife:
        return DriverLife("plant", self.joules)

    def hold(self, device: str) -> None:
        """It forgets nothing."""

    def let_go(self, device: str) -> None:
        """It forgets nothing."""

    def forbidden(self, device: str) -> str | None:
        return None

    def _settle(self) -> None:
        now = self._clock.now()
        self._spent = Joules(self._spent + self.power * Seconds(now - self._since))
        self._since = now
