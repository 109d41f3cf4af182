"""The seam between hardware and everything that reasons about energy.

A ``PowerSource`` is one physical sensor. Its ``read`` may be slow and may fail with SensorError: the sampler isolates
it from the others. Foreign units end inside the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from energyopt.core.results import Scope, Source
from energyopt.core.units import Joules, Seconds, Watts


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
