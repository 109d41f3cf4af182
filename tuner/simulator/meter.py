"""Joules of simulated engines over windows of the past, in the shape of ``tuner.ports.Meter``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from energyopt.core.records import StepRecord
from energyopt.core.results import EnergyReading, EnergySplit, Scope, Source
from energyopt.core.units import Joules, Seconds

from .runner import RooflineRunner


class SimulatedMeter:
    """Integrates the steps of runners; between steps a device draws its idle power.

    The split of a step between its phases goes by tokens. ``error`` is relative and is that of the constants.
    """

    def __init__(self, runners: Sequence[RooflineRunner]) -> None:
        self._runners = tuple(runners)

    @property
    def reasons(self) -> tuple[str, ...]:
        notes = {
            f"simulated by a model of {runner.machine.gpu.name} ({runner.machine.constants.origin} constants)"
            for runner in self._runners
        }
        return tuple(sorted(notes))

    def readings(self, start: Seconds, end: Seconds) -> tuple[EnergyReading, ...]:
        return tuple(reading for runner in self._runners for reading in _of_runner(runner, start, end))

    def split(self, steps: Sequence[StepRecord], start: Seconds, end: Seconds) -> EnergySplit | None:
        if not self._runners:
            return None
        prefill = decode = idle = 0.0
        for runner in self._runners:
            parts = _joules(runner, start, end)
            devices = len(runner.devices)
            prefill, decode, idle = (
                total + devices * part for total, part in zip((prefill, decode, idle), parts, strict=True)
            )
        return EnergySplit(prefill=Joules(prefill), decode=Joules(decode), idle=Joules(idle), overhead=Joules(0.0))


def _of_runner(runner: RooflineRunner, start: Seconds, end: Seconds) -> list[EnergyReading]:
    """One reading a device: all ranks of an engine work alike."""
    joules = sum(_joules(runner, start, end))
    error = runner.machine.constants.error * joules
    return [
        EnergyReading(
            device=device,
            joules=Joules(joules),
            error=Joules(error),
            scope=Scope.GPU,
            source=Source.SIMULATED,
            window=Seconds(end - start),
        )
        for device in runner.devices
    ]


def _joules(runner: RooflineRunner, start: float, end: float) -> tuple[float, float, float]:
    """Joules of one device of a runner in prefill, decode and idle time."""
    ledger = runner.ledger
    starts, ends, watts, prefill = (
        _column(column) for column in (ledger.starts, ledger.ends, ledger.watts, ledger.prefill)
    )
    overlap = np.clip(np.minimum(ends, end) - np.maximum(starts, start), 0.0, None)
    joules = overlap * watts
    of_prefill = float((joules * prefill).sum())
    idle = max(0.0, end - start - float(overlap.sum())) * runner.machine.idle
    return of_prefill, float(joules.sum()) - of_prefill, idle


def _column(values: Sequence[float]) -> NDArray[np.float64]:
    return np.array(values, dtype=np.float64)
