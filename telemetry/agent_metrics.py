"""The collecting process about itself: which driver libraries answer, and whether settled energy reached its sink."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from .catalog import AGENT
from .families import Values, family


@dataclass(frozen=True, slots=True)
class CollectorHealth:
    """One driver library: ``up`` if it answers. ``restarts`` is None where it has no process of its own."""

    name: str
    up: bool
    restarts: int | None = None


@dataclass(slots=True)
class ChunkCounts:
    """Pieces of settled energy handed to the sink, and those it refused."""

    accepted: int = 0
    lost: int = 0


class AgentCollector(Collector):
    """Series of the agent. ``health`` is asked at each scrape and must be quick."""

    def __init__(self, health: Callable[[], Sequence[CollectorHealth]], chunks: ChunkCounts) -> None:
        self._health = health
        self._chunks = chunks

    def describe(self) -> Iterator[Family]:
        """Nothing: the families depend on what is found."""
        return iter(())

    def collect(self) -> Iterator[Family]:
        health = self._health()
        yield family(AGENT.collector_up, {(one.name,): float(one.up) for one in health})
        restarts: Values = {(one.name,): float(one.restarts) for one in health if one.restarts is not None}
        yield family(AGENT.collector_restarts, restarts)
        yield family(AGENT.chunks, {("accepted",): self._chunks.accepted, ("lost",): self._chunks.lost})
