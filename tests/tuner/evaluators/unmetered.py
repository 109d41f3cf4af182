"""A meter for tests of evaluators that are not about joules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from energyopt.core.config import Deployment
from energyopt.core.records import StepRecord
from energyopt.core.results import EnergyReading, EnergySplit
from energyopt.core.units import Seconds
from tuner.ports import Meter


class Unmetered:
    """Satisfies ``Meter`` without a sensor."""

    reasons = ("nothing measures here",)

    def readings(self, start: Seconds, end: Seconds) -> tuple[EnergyReading, ...]:
        return ()

    def split(self, steps: Sequence[StepRecord], start: Seconds, end: Seconds) -> EnergySplit | None:
        return None


@contextmanager
def unmetered(deployment: Deployment) -> Iterator[Meter]:
    yield Unmetered()
