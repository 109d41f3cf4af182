"""Metrics of an engine that sleeps while nobody asks it; one that never sleeps has none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from prometheus_client.metrics_core import Metric as Family

from . import sleep_catalog as catalog
from .families import family

_SOURCE = "estimated"
"""What was saved is a counterfactual, whatever the sensor."""


class SleepView(Protocol):
    """Sleeps since start, as the engine spells them; None is what was not measured."""

    @property
    def asleep(self) -> bool: ...
    @property
    def sleeps(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def freed(self) -> int | None: ...
    @property
    def saved(self) -> float | None: ...
    @property
    def error(self) -> float | None: ...
    @property
    def measured(self) -> float: ...
    @property
    def refused(self) -> int: ...


def sleep_families(model: str, counts: SleepView) -> Iterator[Family]:
    """A value that is not known has no series."""
    yield family(catalog.ASLEEP, {(model,): float(counts.asleep)})
    yield family(catalog.SLEEPS, {(model,): counts.sleeps})
    yield family(catalog.SECONDS, {(model,): counts.seconds})
    if counts.freed is not None:
        yield family(catalog.FREED, {(model,): counts.freed})
    if counts.saved is not None:
        yield family(catalog.SAVED, {(model, _SOURCE): counts.saved})
    if counts.error is not None:
        yield family(catalog.SAVED_ERROR, {(model, _SOURCE): counts.error})
    yield family(catalog.MEASURED, {(model,): counts.measured})
    yield family(catalog.REFUSED, {(model,): counts.refused})
