"""The router's counters as a Prometheus page."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from telemetry import router_catalog as catalog
from telemetry.families import family
from telemetry.metric import Metric

from .counts import Counts, Distribution
from .fleet import Fleet


class RouterCollector(Collector):
    """Reads counters at each scrape; on the router's own event loop."""

    def __init__(self, fleet: Fleet, counts: Counts) -> None:
        self._fleet, self._counts = fleet, counts

    def describe(self) -> Iterator[Family]:
        """Nothing: what is published depends on what happened."""
        return iter(())

    def collect(self) -> Iterator[Family]:
        counts, fleet = self._counts, self._fleet
        yield family(catalog.REQUESTS, {(name, outcome): count for (name, outcome), count in counts.requests.items()})
        for metric, values in (
            (catalog.RETRIES, counts.retries),
            (catalog.REFUSED, counts.refused),
            (catalog.PROMPT_TOKENS, counts.prompt_tokens),
            (catalog.HIT_TOKENS, counts.hit_tokens),
            (catalog.EVENT_GAPS, counts.event_gaps),
        ):
            yield family(metric, {(label,): value for label, value in values.items()})
        now, backends = fleet.now, fleet.backends
        yield family(catalog.EJECTIONS, {(one.name,): one.health.ejections for one in backends})
        yield family(catalog.UP, {(one.name,): float(one.health.fit(now)) for one in backends})
        yield family(catalog.RUNNING, {(one.name,): one.running for one in backends})
        yield family(catalog.QUEUED, {(): fleet.queued})
        yield _histogram(catalog.DELAY, {(): counts.delay})
        yield _histogram(catalog.QUEUE_TIME, {(): counts.queued})
        yield _histogram(catalog.FIRST_BYTE, {(name,): one for name, one in counts.first_bytes.items()})


def _histogram(metric: Metric, found: dict[tuple[str, ...], Distribution]) -> HistogramMetricFamily:
    made = HistogramMetricFamily(metric.family, metric.help, labels=metric.labels)
    for labels, one in found.items():
        bounds = [*map(str, one.bounds), "+Inf"]
        made.add_metric(labels, list(zip(bounds, accumulate(one.counts), strict=True)), one.total)
    return made


class RouterPage:
    """Satisfies ``api.services.MetricsPage``."""

    def __init__(self, collector: RouterCollector) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(collector)

    def render(self, accept: str) -> tuple[bytes, str]:
        """The page and its content type, in the format that the ``Accept`` header prefers."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type
