"""What is kept of a run beside its summaries, so that two runs can be compared with intervals."""

from __future__ import annotations

from collections.abc import Sequence

from energyopt.core.errors import SensorError
from energyopt.core.records import RequestRecord
from energyopt.core.results import Result, total_energy
from energyopt.core.units import Seconds

from ..counting import Window, count_output, ended_in
from ..ports import Meter

SLICES = 12
MAX_SAMPLES = 20_000


class Slice(Result):
    """One piece of the window. ``joules`` is None where they are unknown."""

    seconds: float
    requests: int
    output_tokens: int
    joules: float | None


def slices_of(window: Window, records: Sequence[RequestRecord], meter: Meter | None) -> tuple[Slice, ...]:
    """The window in equal pieces: its own repetitions, as far as one run has any."""
    length = window.length / SLICES
    found = []
    for index in range(SLICES):
        start = Seconds(window.start + index * length)
        end = window.end if index == SLICES - 1 else Seconds(start + length)
        piece = Window(start, end)
        found.append(
            Slice(
                seconds=piece.length,
                requests=len(ended_in(piece, records)),
                output_tokens=count_output(piece, records),
                joules=_joules(piece, meter),
            )
        )
    return tuple(found)


def _joules(piece: Window, meter: Meter | None) -> float | None:
    if meter is None:
        return None
    try:
        total = total_energy(meter.readings(piece.start, piece.end))
    except SensorError:  # the whole window has the reason
        return None
    return None if total is None else total.joules


def kept(values: Sequence[float]) -> tuple[float, ...]:
    """At most ``MAX_SAMPLES`` values in their order, evenly taken, to the microsecond."""
    step = -(-len(values) // MAX_SAMPLES) or 1
    return tuple(round(value, 6) for value in values[::step])
