"""Cuts what the curves have settled into pieces for a sink: whole seconds of UTC, each once, none over a gap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from energyopt.core.clock import Clock
from energyopt.core.errors import SensorError
from energyopt.core.units import Seconds

from .curve import EnergyCurve
from .ports import EnergyChunk, SensorId

DRIFT = 0.05
"""Seconds by which UTC may move against the clock before the cuts follow it: NTP slews by less in an hour."""


class Chunker:
    """Remembers per sensor until when energy was handed on."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[SensorId, Seconds] = {}
        self._zero = self._utc_of_zero()

    def cut(self, curves: Sequence[EnergyCurve], *, last: bool = False) -> list[EnergyChunk]:
        """Pieces that are new since the call before; with ``last`` also the begun second, so that nothing is left.

        Spans of which the energy is not known, or which the curve has forgotten, are left out.
        """
        zero = self._utc_of_zero()
        if abs(zero - self._zero) > DRIFT:
            self._zero = zero
        return [chunk for curve in curves for chunk in self._of(curve, last)]

    def _of(self, curve: EnergyCurve, last: bool) -> list[EnergyChunk]:
        span = curve.coverage
        if span is None:
            return []
        start = max(span[0], self._until.get(curve.sensor, span[0]))
        chunks = []
        for end in self._ends(start, span[1], last):
            chunk = self._piece(curve, start, end)
            chunks += [chunk] if chunk is not None else []
            self._until[curve.sensor] = start = end
        return chunks

    def _ends(self, start: float, settled: float, last: bool) -> list[Seconds]:
        """Moments after ``start`` and no later than ``settled`` at which UTC is a whole second."""
        first = math.floor(start + self._zero) + 1
        seconds = range(first, math.floor(settled + self._zero) + 1)
        whole = [
            Seconds(min(second - self._zero, settled)) for second in seconds
        ]  # UTC has fewer digits than the clock
        rest = last and settled > (whole[-1] if whole else start)
        return [*whole, Seconds(settled)] if rest else whole

    def _piece(self, curve: EnergyCurve, start: Seconds, end: Seconds) -> EnergyChunk | None:
        try:
            reading, edge = curve.window(start, end), curve.edge_error(start, end)
        except SensorError:
            return None  # a gap: its energy is unknown, and a sink that has no row for it says so
        date = datetime.fromtimestamp(start + self._zero, UTC)
        return EnergyChunk(curve.sensor, start, end, date, reading.joules, reading.error, reading.source, edge)

    def _utc_of_zero(self) -> float:
        """UTC, in seconds, when the clock showed 0."""
        return self._clock.utc().timestamp() - self._clock.now()
