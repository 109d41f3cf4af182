"""From the counters of KV tiers to series: one per tier, none where there is no tier."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client.metrics_core import Metric as Family

from . import tier_catalog as catalog
from .families import family
from .metric import Metric


class TierView(Protocol):
    """One tier's counters since start, as the engine spells them."""

    @property
    def tier(self) -> str: ...
    @property
    def hits(self) -> int: ...
    @property
    def loads(self) -> int: ...
    @property
    def stores(self) -> int: ...
    @property
    def load_bytes(self) -> int: ...
    @property
    def store_bytes(self) -> int: ...
    @property
    def load_seconds(self) -> float: ...
    @property
    def store_seconds(self) -> float: ...
    @property
    def evictions(self) -> int: ...
    @property
    def failures(self) -> Mapping[str, int]: ...


_PLAIN: tuple[tuple[Metric, Callable[[TierView], float]], ...] = (
    (catalog.HITS, lambda view: view.hits),
    (catalog.LOADS, lambda view: view.loads),
    (catalog.STORES, lambda view: view.stores),
    (catalog.LOAD_BYTES, lambda view: view.load_bytes),
    (catalog.STORE_BYTES, lambda view: view.store_bytes),
    (catalog.LOAD_SECONDS, lambda view: view.load_seconds),
    (catalog.STORE_SECONDS, lambda view: view.store_seconds),
    (catalog.EVICTIONS, lambda view: view.evictions),
)


def tier_families(model: str, engine: str, views: Sequence[TierView]) -> Iterator[Family]:
    """Every family of the tiers that are there; ``engine`` is the label that vLLM's names carry."""
    if not views:
        return
    for metric, read in _PLAIN:
        yield family(metric, {(model, view.tier): read(view) for view in views})
    failures: dict[tuple[str, ...], float] = {
        (model, view.tier, reason): count for view in views for reason, count in view.failures.items()
    }
    yield family(catalog.FAILURES, failures)
    for view in views:
        if view.tier == "host":
            labels = ((model, engine, "GPU_to_CPU"), (model, engine, "CPU_to_GPU"))
            volumes = (view.store_bytes, view.load_bytes)
            times = (view.store_seconds, view.load_seconds)
            yield family(catalog.VLLM_OFFLOAD_BYTES, dict(zip(labels, volumes, strict=True)))
            yield family(catalog.VLLM_OFFLOAD_SECONDS, dict(zip(labels, times, strict=True)))
