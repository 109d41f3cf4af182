"""The meter that the rest of the project asks: sensors, their curves and the account, behind one object."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from types import TracebackType

from energyopt.core.clock import Clock
from energyopt.core.errors import SensorError
from energyopt.core.records import StepRecord
from energyopt.core.results import EnergyReading, EnergySplit, EnergyTotal
from energyopt.core.units import Seconds

from .attribute import Attribution, attribute, runs_on
from .attribution_report import AttributionReport
from .desk import Desk
from .device_channel import DeviceChannel
from .idle import IdlePolicy
from .ledger import Ledger
from .ports import PowerSource, StatusSource
from .sampler import PERIOD, Channel, Sampler
from .weigh import ComputeWeight, Weigh

SETTLE = Seconds(3.0)
"""Longest wait for curves to cover the end of a window; a counter that is stuck is given up within this time."""
FRESH = Seconds(0.01)
"""A sample younger than this is not repeated by ``request_energy``."""


class Meter:
    """Energy over windows of the past and of requests, on the clock of the records.

    Owns its sources: ``stop`` closes them. Without sources it answers that nothing is known: ``()`` and None.
    """

    def __init__(
        self,
        sources: Sequence[PowerSource],
        clock: Clock,
        reasons: Sequence[str] = (),
        *,
        weigh: Weigh | None = None,
        period: Seconds = PERIOD,
        statuses: Sequence[StatusSource] = (),
        idle: IdlePolicy | None = None,
        tenants: Iterable[str] = (),
    ) -> None:
        self._clock = clock
        self._found = tuple(reasons)
        self._missing: dict[str, str] = {}
        self._weigh = weigh or ComputeWeight()
        self.sampler = Sampler(sources, clock, period=period, statuses=statuses)
        curves = [channel.curve for channel in self.channels]
        self.ledger = Ledger(curves, self._weigh, idle=idle, tenants=tenants)
        self.desk = Desk()

    @property
    def channels(self) -> tuple[Channel, ...]:
        """One per sensor: its curve and health, for metrics and reports."""
        return self.sampler.channels

    @property
    def devices(self) -> tuple[DeviceChannel, ...]:
        """One per GPU that tells its status."""
        return self.sampler.devices

    @property
    def reasons(self) -> tuple[str, ...]:
        """What was found, what could not be measured and why, how steps are divided; the last failure included."""
        fit = self.ledger.weigh.report() if self.channels else None
        divided = (fit.sentence,) if fit is not None and fit.steps else ()
        return (*self._found, *divided, *self._missing.values())

    def start(self) -> None:
        """Begin to sample; the first samples are taken before it returns."""
        self.sampler.poll()
        self.sampler.start()
        self.desk.start()

    def stop(self) -> None:
        """End sampling and release the drivers; what was measured stays readable. Idempotent."""
        self.sampler.stop()
        for channel in self.channels:
            channel.close()
        for device in self.devices:
            device.close()
        self.desk.stop()

    def __enter__(self) -> Meter:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def readings(self, start: Seconds, end: Seconds) -> tuple[EnergyReading, ...]:
        """One reading per sensor, or () if any sensor cannot tell: a partial sum would pass for the whole.

        Waits up to SETTLE for the sensors to cover ``end``; ``reasons`` then names what is missing.
        """
        self._await(end)
        readings = []
        for channel in self.channels:
            sensor = f"{channel.curve.sensor.device} ({channel.curve.sensor.scope})"
            try:
                readings.append(channel.curve.window(start, end))
                self._missing.pop(sensor, None)
            except SensorError as error:
                because = f" Last failure: {channel.failure}" if channel.failure else ""
                self._missing[sensor] = f"{error}{because}"
        return tuple(readings) if len(readings) == len(self.channels) else ()

    def split(self, steps: Sequence[StepRecord], start: Seconds, end: Seconds) -> EnergySplit | None:
        """Energy of all sensors from ``start`` to ``end`` by purpose; None without sensors or where one has a gap."""
        if not self.channels or not self.readings(start, end):
            return None
        total = Attribution()
        for channel in self.channels:
            here = [step for step in steps if runs_on(step, channel.curve.sensor)]
            total.add(attribute(channel.curve.nanojoules, here, start, end, self._weigh))
        return total.split()

    def note(self, request_id: str, *, tenant: str | None = None, session: str | None = None) -> None:
        """Say whose a request is, before its first step (see Ledger.note)."""
        self.ledger.note(request_id, tenant=tenant, session=session)

    def record(self, step: StepRecord) -> None:
        """Book a finished step for ``request_energy`` and the totals; soon, on another thread (see Desk)."""
        self.desk.add(partial(self.ledger.record, step))

    def request_energy(self, request_id: str) -> EnergyTotal | None:
        """Joules of a request whose steps were recorded; None if unknown. Takes a fresh sample first."""
        if not self.channels:
            return None
        if any(channel.age is None or channel.age > FRESH for channel in self.channels):
            self.sampler.poll()
        self.desk.catch_up()
        self.ledger.settle()
        return self.ledger.request_energy(request_id)

    def attribution(self, tenant: str | None = None) -> AttributionReport:
        """Who used how much so far (see Ledger.report). Calls no driver."""
        self.desk.catch_up()
        return self.ledger.report(tenant)

    def totals(self) -> EnergySplit | None:
        """Joules by purpose since the start, as far as settled; None without sensors. Calls no driver."""
        self.desk.catch_up()
        self.ledger.settle()
        return self.ledger.split()

    def _await(self, end: Seconds) -> None:
        deadline = self._clock.now() + SETTLE
        while not all(_covers(channel, end) for channel in self.channels):
            self.sampler.poll()
            settled = all(_covers(channel, end) or channel.closed for channel in self.channels)
            if settled or self._clock.now() >= deadline:
                return
            self._clock.sleep(Seconds(0.02))


def _covers(channel: Channel, end: Seconds) -> bool:
    span = channel.curve.coverage
    return span is not None and span[1] >= end
