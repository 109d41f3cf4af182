"""A scripted device status: what tests and demonstrations look at instead of hardware."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from energyopt.core.clock import Clock
from energyopt.core.errors import SensorError
from energyopt.core.results import Scope
from energyopt.core.units import Hertz, Seconds, Watts

from .status import Celsius, DeviceInfo, DeviceStatus, Ratio, Throttle

INFO = DeviceInfo("GPU-fake", "nvidia", "Fake H100", 0, "00000000:01:00.0", "fake", 7)
FULL = DeviceStatus(
    at=Seconds(0.0),
    power={(Scope.GPU, "average"): Watts(290.0), (Scope.MEMORY, "average"): Watts(40.0)},
    limits={
        "requested": Watts(500.0),
        "enforced": Watts(450.0),
        "default": Watts(650.0),
        "min": Watts(200.0),
        "max": Watts(700.0),
    },
    clocks={"sm": Hertz(1.41e9), "memory": Hertz(2.6e9)},
    clock_bounds={("sm", "max"): Hertz(1.5e9)},
    temperature={"gpu": Celsius(54.0)},
    utilization={"compute": Ratio(0.9), "memory": Ratio(0.4)},
    throttled=frozenset({Throttle.POWER_CAP}),
    throttle_time={Throttle.POWER_CAP: Seconds(12.5), Throttle.THERMAL_SW: Seconds(0.0)},
)


class FakeStatus:
    """A device that says ``status`` stamped with now; ``change`` may alter it or refuse (None raises SensorError)."""

    def __init__(
        self,
        clock: Clock,
        *,
        info: DeviceInfo = INFO,
        status: DeviceStatus = FULL,
        change: Callable[[DeviceStatus], DeviceStatus | None] = lambda status: status,
    ) -> None:
        self._clock = clock
        self._status = status
        self._change = change
        self.info = info
        self.reads = 0
        self.closed = False

    def read(self) -> DeviceStatus:
        self.reads += 1
        seen = self._change(replace(self._status, at=self._clock.now()))
        if seen is None:
            raise SensorError(f"{self.info.device} did not answer.")
        return seen

    def close(self) -> None:
        self.closed = True
