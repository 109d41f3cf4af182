"""The metrics of all engines as one page: their own series with the engine's name and role, and the front's.

Two engines on one device both report it whole: sums over engines are for tokens and requests, not for devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from .workers import Role, Worker

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def merged_page(pages: Mapping[str, str], workers: Iterable[Worker], counts: Mapping[str, int]) -> bytes:
    """``pages`` are by engine. A page that cannot be read is left out."""
    workers = tuple(workers)
    roles = {worker.name: worker.role.value for worker in workers}
    families = [*_merged(pages, roles), *_own(workers, counts)]
    registry = CollectorRegistry()
    registry.register(_Families(families))
    return generate_latest(registry)


class _Families(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def _merged(pages: Mapping[str, str], roles: Mapping[str, str]) -> list[Metric]:
    families: dict[str, Metric] = {}
    for worker, page in pages.items():
        try:
            found = list(text_string_to_metric_families(page))
        except ValueError:
            continue
        for family in found:
            whole = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                labels = {**sample.labels, "worker": worker, "role": roles[worker]}
                whole.add_sample(sample.name, labels, sample.value)
    return list(families.values())


def _own(workers: tuple[Worker, ...], counts: Mapping[str, int]) -> list[Metric]:
    up = GaugeMetricFamily("energyopt_pool_worker_up", "Whether an engine is up.", labels=["worker", "role"])
    running = GaugeMetricFamily("energyopt_pool_legs", "Legs that an engine has now.", labels=["worker", "leg"])
    events = CounterMetricFamily("energyopt_pool_events", "Legs, tries again and legs left out.", labels=["event"])
    for worker in workers:
        up.add_metric([worker.name, worker.role.value], float(worker.url is not None))
        for role in Role:
            running.add_metric([worker.name, role.value], float(worker.legs[role]))
    for event, count in sorted(Counter(counts).items()):
        events.add_metric([event], float(count))
    return [up, running, events]
