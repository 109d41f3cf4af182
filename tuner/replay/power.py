"""Energy of a window from samples of power or of an energy counter, under the contract that makes it comparable.

The edges of the window lie between two samples and are interpolated; samples are at most ``MAX_GAP`` apart around and
within it; a sample that is no number, a device that is missing or a counter that starts anew without power to bridge it
makes the window invalid, with a code and words. An invalid window has no joules.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from energyopt.core.results import EnergyReading, Scope, Source
from energyopt.core.units import Joules, Seconds

MAX_GAP = Seconds(3.0)
GAUGE_ERROR = 0.02
"""Sampling a gauge a few times a second was within 1.8% of the device's own counter in the field."""
CROSSCHECK = 0.05


@dataclass(frozen=True, slots=True)
class PowerSample:
    """What one device said at one time; ``watts`` and ``joules`` (a counter, any zero) where it says them."""

    time: Seconds
    watts: float | None = None
    joules: float | None = None


@dataclass(frozen=True, slots=True)
class WindowEnergy:
    """``reading`` is None exactly if ``faults`` is not empty; ``notes`` are advice only."""

    reading: EnergyReading | None
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def energy_of(
    device: str, samples: Iterable[PowerSample], start: Seconds, end: Seconds, *, scope: Scope = Scope.GPU
) -> WindowEnergy:
    """The energy of one device between ``start`` and ``end``."""
    near = [one for one in samples if start - MAX_GAP <= one.time <= end + MAX_GAP]
    bad = [one for one in near if not all(map(_usable, (one.watts, one.joules)))]
    if bad:
        return WindowEnergy(None, (f"bad_sample: {device} said {bad[0].watts} W, {bad[0].joules} J",))
    counter = _line(device, [(one.time, one.joules) for one in near if one.joules is not None], start, end)
    gauge = _line(device, [(one.time, one.watts) for one in near if one.watts is not None], start, end)
    by_counter = None if isinstance(counter, str) else _climb(counter)
    by_power = None if isinstance(gauge, str) else _area(gauge)
    if by_counter is not None and not isinstance(counter, str):
        notes = _crosscheck(device, by_counter, by_power)
        edge = _edge_error(counter)
        return WindowEnergy(_reading(device, by_counter, edge, Source.COUNTER, scope, start, end), (), notes)
    if by_power is not None:
        error = GAUGE_ERROR * by_power
        notes = () if isinstance(counter, str) else (f"counter_reset: {device} began anew; its power was integrated",)
        return WindowEnergy(_reading(device, by_power, error, Source.INTEGRATED, scope, start, end), (), notes)
    if not isinstance(counter, str):
        return WindowEnergy(None, (f"counter_reset: the energy counter of {device} began anew within the window",))
    return WindowEnergy(None, (gauge if isinstance(gauge, str) and "few_samples" not in gauge else counter,))


def _usable(value: float | None) -> bool:
    return value is None or (math.isfinite(value) and value >= 0)


Point = tuple[float, float]


def _line(device: str, raw: Sequence[Point], start: float, end: float) -> list[Point] | str:
    """The values over exactly [start, end] with interpolated edges, or the fault that forbids it."""
    if len(raw) < 2:
        return f"few_samples: {device} has {len(raw)} samples around the window; at least 2 are needed"
    points = _averaged(raw)
    inside = [index for index, (time, _) in enumerate(points) if start < time < end]
    first = max((index for index, (time, _) in enumerate(points) if time <= start), default=None)
    last = next((index for index, (time, _) in enumerate(points) if time >= end), None)
    if first is None or last is None:
        edge = "start" if first is None else "end"
        return f"not_bracketed: {device} has no sample beyond the {edge} of the window"
    gap = max(later[0] - earlier[0] for earlier, later in pairwise(points[first : last + 1]))
    if gap > MAX_GAP:
        return f"gap: {device} was silent for {gap:.3g} s; at most {MAX_GAP:g} s are allowed"
    left, right = _between(points, first, start), _between(points, last - 1, end)
    return [(start, left), *(points[index] for index in inside), (end, right)]


def _averaged(raw: Sequence[Point]) -> list[Point]:
    """One point a time: samples with equal stamps are averaged."""
    by_time: dict[float, list[float]] = {}
    for time, value in raw:
        by_time.setdefault(time, []).append(value)
    return [(time, math.fsum(values) / len(values)) for time, values in sorted(by_time.items())]


def _between(points: Sequence[Point], index: int, at: float) -> float:
    """The value at ``at`` on the segment that begins at ``index``."""
    (t0, v0), (t1, v1) = points[index], points[min(index + 1, len(points) - 1)]
    return v0 if t1 <= t0 else v0 + (v1 - v0) * (at - t0) / (t1 - t0)


def _area(line: Sequence[Point]) -> float:
    return math.fsum((later[0] - earlier[0]) * (earlier[1] + later[1]) / 2 for earlier, later in pairwise(line))


def _climb(line: Sequence[Point]) -> float | None:
    """What a counter rose by; None if it fell anywhere, which is another counter."""
    if any(later[1] < earlier[1] for earlier, later in pairwise(line)):
        return None
    return line[-1][1] - line[0][1]


def _edge_error(line: Sequence[Point]) -> float:
    """Half of what lies in the first and the last segment: where in it the energy flowed is unknown."""
    first, last = line[1][1] - line[0][1], line[-1][1] - line[-2][1]
    return (first + last) / 2 if len(line) > 2 else first / 2


def _crosscheck(device: str, by_counter: float, by_power: float | None) -> tuple[str, ...]:
    if not by_power or abs(by_counter / by_power - 1) <= CROSSCHECK:
        return ()
    return (f"crosscheck: {device} counted {by_counter:.4g} J but its power integrates to {by_power:.4g} J",)


def _reading(
    device: str, joules: float, error: float, source: Source, scope: Scope, start: float, end: float
) -> EnergyReading:
    return EnergyReading(
        device=device,
        joules=Joules(joules),
        error=Joules(error),
        scope=scope,
        source=source,
        window=Seconds(end - start),
    )
