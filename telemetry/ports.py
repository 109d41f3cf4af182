"""The seam between hardware and everything that reasons about energy.

A ``PowerSource`` is one physical sensor; a ``StatusSource`` tells the other facts of one device. A ``read`` may be
slow and may fail with SensorError: the sampler isolates it from the others. Foreign units end inside the source. An
``EnergySink`` is what takes settled energy away, to a database or elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from energyopt.core.results import Scope, Source
from energyopt.core.units import Joules, Seconds, Watts

from .status import DeviceInfo, DeviceStatus


@dataclass(frozen=True, slots=True)
class SensorId:
    """A physical sensor: ``device`` is a GPU UUID, a CPU package name; never an index."""

    device: str
    scope: Scope


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading. ``counter`` is the raw cumulative energy as the device tells it (it may reset or glitch).

    At least one of ``counter`` and ``power`` is known. ``at`` is on the sampler's clock. ``kind`` says whether the
    power is of the moment or a mean over the sensor's own window (None: not stated).
    """

    at: Seconds
    counter: Joules | None = None
    power: Watts | None = None
    kind: Literal["instant", "average"] | None = None


class PowerSource(Protocol):
    """One sensor.

    ``source`` says what its joules are: COUNTER when ``counter`` is the truth, INTEGRATED when only ``power`` is
    read, ESTIMATED when a model stands behind it. ``max_power`` bounds what is plausible (None: unknown).
    ``relative_error`` is the sensor's own error as a share of its value, 0 where the maker states none.
    """

    @property
    def sensor(self) -> SensorId: ...

    @property
    def source(self) -> Source: ...

    @property
    def max_power(self) -> Watts | None: ...

    @property
    def relative_error(self) -> float: ...

    def read(self) -> Sample:
        """Read now. Raises SensorError; never returns a made-up value."""
        ...

    def close(self) -> None:
        """Release the driver; idempotent."""
        ...


class StatusSource(Protocol):
    """The facts of one device other than its energy."""

    @property
    def info(self) -> DeviceInfo: ...

    def read(self) -> DeviceStatus:
        """Look now. A fact that fails alone is absent; raises SensorError if the device does not answer at all."""
        ...

    def close(self) -> None:
        """Release the driver; idempotent."""
        ...


_NONE = Joules(0.0)


@dataclass(frozen=True, slots=True)
class EnergyChunk:
    """Settled energy of one sensor between two moments of its clock; ``date`` is that of ``start``.

    Chunks of a sensor come in order and never overlap. Time of which nothing is known has no chunk. They are cut at
    whole seconds of ``date`` (UTC), so that a rollup of seconds need not divide them. ``error`` is the half-width in
    joules as the curve states it for this window alone; ``edge`` is the part of it that belongs to the two ends, which
    cancels between neighbours: over many chunks the other parts add up, and only two half edges remain.
    """

    sensor: SensorId
    start: Seconds
    end: Seconds
    date: datetime
    joules: Joules
    error: Joules
    source: Source
    edge: Joules = _NONE

    @property
    def mean_power(self) -> Watts:
        return Watts(self.joules / (self.end - self.start))


class EnergySink(Protocol):
    """Takes chunks of settled energy, called from one thread about once a second."""

    def accept(self, chunks: Sequence[EnergyChunk]) -> None:
        """Take them over. Must not block on a slow database: queue, and bound the queue. Raises StoreError if lost."""
        ...

    def close(self) -> None:
        """Write what is queued and release everything; idempotent."""
        ...
