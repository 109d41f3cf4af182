"""A scripted sensor: what tests and demonstrations read instead of hardware."""

from __future__ import annotations

from collections.abc import Callable

from energyopt.core.clock import Clock
from energyopt.core.errors import SensorError
from energyopt.core.results import Scope, Source
from energyopt.core.units import Joules, Seconds, Watts

from .ports import Sample, SensorId


class FakeSource:
    """A sensor whose power is a function of time; its counter is the exact integral, published every ``tick``.

    ``power`` gives watts at a time and ``energy`` its integral from 0 in joules. ``fault`` may change or refuse (None
    raises SensorError) any sample. ``with_counter`` and ``with_power`` choose what the sensor knows.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        power: Callable[[float], float] = lambda at: 300.0,
        energy: Callable[[float], float] = lambda at: 300.0 * at,
        sensor: SensorId = SensorId("GPU-fake", Scope.GPU),
        source: Source = Source.COUNTER,
        tick: float = 0.0,
        max_power: float | None = 700.0,
        relative_error: float = 0.0,
        with_counter: bool = True,
        with_power: bool = True,
        fault: Callable[[Sample], Sample | None] = lambda sample: sample,
    ) -> None:
        self._clock = clock
        self._power = power
        self._energy = energy
        self._tick = tick
        self._with_counter = with_counter
        self._with_power = with_power
        self._fault = fault
        self.sensor = sensor
        self.source = source
        self.max_power = None if max_power is None else Watts(max_power)
        self.relative_error = relative_error
        self.reads = 0
        self.closed = False

    def read(self) -> Sample:
        self.reads += 1
        now = self._clock.now()
        published = now - now % self._tick if self._tick else now
        sample = Sample(
            at=now,
            counter=Joules(self._energy(published)) if self._with_counter else None,
            power=Watts(self._power(now)) if self._with_power else None,
        )
        faulty = self._fault(sample)
        if faulty is None:
            raise SensorError(f"{self.sensor.device} did not answer at {Seconds(now):.3f} s.")
        return faulty

    def close(self) -> None:
        self.closed = True
