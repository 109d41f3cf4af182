"""Reads every source at a steady rate and feeds its curve.

Quick sources share a thread; one whose driver call does not return in time gets its own, so that it delays no other
sensor (see Crew). A source that fails is asked again with growing pauses; its failures are counted and its last words
kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from energyopt.core.clock import Clock
from energyopt.core.units import Seconds

from .crew import Crew
from .curve import EnergyCurve
from .device_channel import PERIOD as STATUS_PERIOD
from .device_channel import DeviceChannel
from .ports import PowerSource, Sample, StatusSource
from .reader import Reader

PERIOD = Seconds(0.05)
GRACE = 0.25
"""Share of a period after which a reading is slow."""


class Channel(Reader):
    """One sensor, its curve and its health."""

    def __init__(self, source: PowerSource, clock: Clock, period: Seconds) -> None:
        super().__init__(str(source.sensor), source.close, clock, period)
        self.source = source
        self.curve = EnergyCurve.of(source)
        self.sample: Sample | None = None
        self._clock = clock

    @property
    def up(self) -> bool:
        """True if the last attempt gave a sample."""
        return self.sample is not None and self._failures_in_row == 0

    @property
    def age(self) -> Seconds | None:
        """Seconds since the newest sample; None before the first."""
        return None if self.sample is None else Seconds(self._clock.now() - self.sample.at)

    @property
    def overruns(self) -> int:
        """Beats that had passed before a reading was done."""
        return self._beat.overruns

    def _read(self) -> None:
        self.sample = sample = self.source.read()
        self.curve.add(sample)


class Sampler:
    """All channels of a meter, and the devices behind them. With ``start`` they run on threads; ``step`` and ``poll``
    work without.
    """

    def __init__(
        self,
        sources: Sequence[PowerSource],
        clock: Clock,
        *,
        period: Seconds = PERIOD,
        statuses: Sequence[StatusSource] = (),
    ) -> None:
        self._clock = clock
        self._period = period
        self.channels: tuple[Channel, ...] = ()
        self.devices: tuple[DeviceChannel, ...] = ()
        self._started = False
        self._sensors = Crew("energy", clock, period=period, grace=GRACE * period)
        self._looks = Crew("status", clock, period=STATUS_PERIOD, grace=GRACE * STATUS_PERIOD)
        self.add(sources, statuses)

    @property
    def _all(self) -> tuple[Channel | DeviceChannel, ...]:
        return (*self.channels, *self.devices)

    @property
    def running(self) -> bool:
        return self._started

    def start(self) -> None:
        """Begin to sample. Idempotent."""
        self._started = True
        self._sensors.start()
        self._looks.start()

    def add(self, sources: Sequence[PowerSource], statuses: Sequence[StatusSource]) -> None:
        """Take on further sensors and devices; they run if the others do."""
        channels = [Channel(source, self._clock, self._period) for source in sources]
        devices = [DeviceChannel(source, self._clock) for source in statuses]
        self.channels, self.devices = (*self.channels, *channels), (*self.devices, *devices)
        self._sensors.add(channels)
        self._looks.add(devices)

    def stop(self) -> None:
        """End the threads; curves stay readable. Idempotent."""
        self._sensors.stop()
        self._looks.stop()
        self._started = False

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def poll(self) -> None:
        """Read every sensor now, in this thread, whether due or not; one that is being read already is left alone."""
        for channel in self._all:
            channel.take()

    def step(self) -> int:
        """Read what is due and set the next times; returns how many were read."""
        due = [channel for channel in self._all if channel.wait <= 0]
        for channel in due:
            channel.take()
            channel.keep_pace()
        return len(due)
