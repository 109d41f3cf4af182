"""What the prefix cache was worth in joules: saved by its hits, spent on its loads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from .families import family
from .tier_catalog import SAVED_JOULES, SPENT_JOULES

ESTIMATED = "estimated"
"""What a hit saved never happened, so no sensor saw it."""


class EconomyView(Protocol):
    """Joules since start as the engine's economy counts them."""

    @property
    def saved(self) -> Mapping[str, float]: ...
    @property
    def spent(self) -> Mapping[tuple[str, str], float]: ...


class EconomyCollector(Collector):
    """Renders a snapshot per scrape; what is not known yet has no series."""

    def __init__(self, model: str, counts: Callable[[], EconomyView]) -> None:
        self._model = model
        self._counts = counts

    def describe(self) -> Iterator[Family]:
        return iter(())

    def collect(self) -> Iterator[Family]:
        counts = self._counts()
        saved: dict[tuple[str, ...], float] = {
            (self._model, tier, ESTIMATED): joules for tier, joules in counts.saved.items()
        }
        spent: dict[tuple[str, ...], float] = {
            (self._model, tier, source): joules for (tier, source), joules in counts.spent.items()
        }
        yield family(SAVED_JOULES, saved)
        yield family(SPENT_JOULES, spent)
