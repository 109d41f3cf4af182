"""What becomes of energy that is kept in a database, as metrics: rows written, waiting and lost, and the queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from .account_catalog import STORE
from .families import family


class StoreStats(Protocol):
    """A snapshot of the writer, as the store's WriterStats spells it."""

    @property
    def queued(self) -> int: ...
    @property
    def rows_written(self) -> int: ...
    @property
    def rows_waiting(self) -> int: ...
    @property
    def rows_lost(self) -> int: ...
    @property
    def failure(self) -> str | None: ...


class StoreCollector(Collector):
    """Series of one writer; ``stats`` is asked at each scrape and must be quick."""

    def __init__(self, stats: Callable[[], StoreStats]) -> None:
        self._stats = stats

    def describe(self) -> Iterator[Family]:
        """Nothing: registering asks nobody."""
        return iter(())

    def collect(self) -> Iterator[Family]:
        stats = self._stats()
        yield family(STORE.up, {(): float(stats.failure is None)})
        yield family(STORE.queue, {(): stats.queued})
        yield family(STORE.waiting, {(): stats.rows_waiting})
        yield family(STORE.rows, {("written",): stats.rows_written, ("lost",): stats.rows_lost})
