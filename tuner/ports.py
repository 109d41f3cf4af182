"""What the tuner needs from the outside, as protocols that other folders satisfy by shape.

``Evaluator`` runs one deployment under one workload; ``Meter`` answers for joules; ``PowerController`` applies limits
and puts back what it found. ``compose`` passes the concrete ones in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from energyopt.core.config import Deployment, PowerConfig
from energyopt.core.records import StepRecord
from energyopt.core.results import EnergyReading, EnergySplit, RunResult
from energyopt.core.slo import Slo
from energyopt.core.study import MeasurePlan
from energyopt.core.units import Seconds
from energyopt.core.workload import Workload


@dataclass(frozen=True, slots=True)
class Progress:
    """Where one run stands: ``stage`` is launching, warming, measuring or done; ``fraction`` is of that stage."""

    stage: str
    fraction: float


ProgressSink = Callable[[Progress], None]


class Evaluator(Protocol):
    """Runs one configuration and measures it.

    ``run`` blocks. It raises a TrialError (LaunchError, OutOfMemoryError, CrashError, TrialTimeoutError) when the
    configuration failed; that is a result about the configuration. Any other exception is a fault of ours.
    """

    def run(
        self, deployment: Deployment, workload: Workload, plan: MeasurePlan, slos: Sequence[Slo], progress: ProgressSink
    ) -> RunResult: ...


class Meter(Protocol):
    """Energy over windows of the past, on the same clock as the records.

    ``readings`` has one entry per sensor, () without any; ``split`` is None without any. ``reasons`` names what
    could not be measured and why.
    """

    def readings(self, start: Seconds, end: Seconds) -> tuple[EnergyReading, ...]: ...

    def split(self, steps: Sequence[StepRecord], start: Seconds, end: Seconds) -> EnergySplit | None: ...

    @property
    def reasons(self) -> tuple[str, ...]: ...


class AccuracyGate(Protocol):
    """Decides whether a configuration's answers are as good as the baseline's.

    ``refuses`` blocks for about two runs and says why the configuration may not win, None if it may.
    """

    def refuses(self, candidate: Deployment) -> str | None: ...


class PowerController(Protocol):
    """Applies power limits for the duration of a ``with`` block and restores the values found, however it ends."""

    def applied(self, power: PowerConfig) -> AbstractContextManager[None]: ...
