"""What the service did, as metrics: histograms from finished requests, gauges and counters from the engine's stats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from energyopt.core.records import FinishReason, RequestRecord
from energyopt.core.results import EnergyTotal

from . import catalog
from .account_catalog import ACCOUNT
from .catalog import Metric
from .draft_metrics import DraftView, draft_families
from .families import family
from .owners import ANONYMOUS
from .sleep_metrics import SleepView, sleep_families
from .tier_metrics import TierView, tier_families

ENGINE = "0"
"""vLLM numbers its engines; this service has one."""


class StatsView(Protocol):
    """The engine's counters and gauges, as its stats snapshot spells them."""

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def blocks_used(self) -> int: ...
    @property
    def blocks_total(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def preemptions(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def step_seconds(self) -> float: ...
    @property
    def prompt_tokens_by_source(self) -> Mapping[str, int]: ...
    @property
    def loading(self) -> int: ...
    @property
    def load_failures(self) -> int: ...
    @property
    def min_hit_tokens(self) -> int | None: ...
    @property
    def retention_interval(self) -> int | None: ...
    @property
    def tiers(self) -> Sequence[TierView]: ...
    @property
    def drafts(self) -> DraftView | None: ...
    @property
    def sleep(self) -> SleepView | None: ...


class ServingMetrics:
    """Metrics of one served model. ``stats`` gives a snapshot at each scrape and must be quick."""

    def __init__(self, registry: CollectorRegistry, model: str, stats: Callable[[], StatsView] | None = None) -> None:
        self._model = model
        self._requests = _counter(registry, catalog.REQUESTS)
        self._energy = _histogram(registry, ACCOUNT.requests)
        self._success = _counter(registry, catalog.VLLM_SUCCESS)
        self._own = {metric: _histogram(registry, metric) for metric in (catalog.TTFT, catalog.ITL, catalog.E2E)}
        self._vllm = {metric: _histogram(registry, metric) for metric in _VLLM_HISTOGRAMS}
        if stats is not None:
            registry.register(StatsCollector(model, stats))

    def observe_request(
        self, record: RequestRecord, energy: EnergyTotal | None = None, tenant: str = ANONYMOUS
    ) -> None:
        """Count a finished request; a latency that it does not have is not observed."""
        self._requests.labels(self._model, record.finish_reason.value).inc()
        if energy is not None:
            self._energy.labels(self._model, tenant, energy.label).observe(energy.joules)
        if record.finish_reason is FinishReason.ERROR:
            return
        self._success.labels(self._model, ENGINE, record.finish_reason.value).inc()
        self._observe(catalog.E2E, catalog.VLLM_E2E, record.e2e)
        if record.ttft is not None:
            self._observe(catalog.TTFT, catalog.VLLM_TTFT, record.ttft)
        if record.tpot is not None:
            self._observe(None, catalog.VLLM_TPOT, record.tpot)
        for gap in record.gaps:
            self._observe(catalog.ITL, catalog.VLLM_ITL, gap)
        for metric, seconds in phases(record):
            self._observe(None, metric, seconds)
        self._observe(None, catalog.VLLM_PROMPT_LENGTH, record.prompt_tokens)
        self._observe(None, catalog.VLLM_OUTPUT_LENGTH, record.output_tokens)

    def _observe(self, own: Metric | None, vllm: Metric, value: float) -> None:
        if own is not None:
            self._own[own].labels(self._model).observe(value)
        self._vllm[vllm].labels(self._model, ENGINE).observe(value)


class StatsCollector(Collector):
    """Renders one stats snapshot per scrape."""

    def __init__(self, model: str, stats: Callable[[], StatsView]) -> None:
        self._model = model
        self._stats = stats

    def describe(self) -> Iterator[Family]:
        """Nothing: registering must not ask the engine."""
        return iter(())

    def collect(self) -> Iterator[Family]:
        stats = self._stats()
        plain: tuple[tuple[Metric, Metric | None, float | None], ...] = (
            (catalog.RUNNING, catalog.VLLM_RUNNING, stats.running),
            (catalog.WAITING, catalog.VLLM_WAITING, stats.waiting),
            (catalog.KV_USAGE, catalog.VLLM_KV_USAGE, _usage(stats)),
            (catalog.KV_MIN_HIT, None, stats.min_hit_tokens),
            (catalog.KV_RETENTION, None, stats.retention_interval),
            (catalog.KV_LOADING, None, stats.loading),
            (catalog.KV_LOAD_FAILURES, None, stats.load_failures),
            (catalog.PREEMPTIONS, catalog.VLLM_PREEMPTIONS, stats.preemptions),
            (catalog.STEPS, None, stats.steps),
            (catalog.STEP_SECONDS, None, stats.step_seconds),
        )
        for own, vllm, value in plain:
            if value is None:
                continue
            yield family(own, {(self._model,): value})
            if vllm is not None:
                yield family(vllm, {(self._model, ENGINE): value})
        yield from self._tokens(stats)
        if stats.drafts is not None:
            yield from draft_families(self._model, ENGINE, stats.drafts)
        if stats.sleep is not None:
            yield from sleep_families(self._model, stats.sleep)
        yield from tier_families(self._model, ENGINE, stats.tiers)

    def _tokens(self, stats: StatsView) -> Iterator[Family]:
        model, sources = self._model, stats.prompt_tokens_by_source
        kinds = {"prompt": stats.prompt_tokens, "output": stats.output_tokens}
        yield family(catalog.TOKENS, {(model, kind): count for kind, count in kinds.items()})
        yield family(catalog.VLLM_PROMPT, {(model, ENGINE): stats.prompt_tokens})
        yield family(catalog.VLLM_OUTPUT, {(model, ENGINE): stats.output_tokens})
        yield family(catalog.PROMPT_SOURCE, {(model, source): count for source, count in sources.items()})
        named: dict[tuple[str, ...], float] = {}
        for source, count in sources.items():
            key = (model, ENGINE, _VLLM_SOURCES.get(source, "local_cache_hit"))
            named[key] = named.get(key, 0) + count
        yield family(catalog.VLLM_SOURCE, named)
        cached = sum(count for source, count in sources.items() if source != COMPUTED)
        yield family(catalog.VLLM_CACHED, {(model, ENGINE): cached})
        outside = sum(sources.get(tier, 0) for tier in ELSEWHERE)
        own = cached - outside
        yield family(catalog.VLLM_QUERIES, {(model, ENGINE): stats.prompt_tokens})
        yield family(catalog.VLLM_HITS, {(model, ENGINE): own})
        if any(tier in sources for tier in ELSEWHERE):
            yield family(catalog.VLLM_EXTERNAL_QUERIES, {(model, ENGINE): stats.prompt_tokens - own})
            yield family(catalog.VLLM_EXTERNAL_HITS, {(model, ENGINE): outside})


COMPUTED = "local_compute"
"""The engine's name for prompt tokens that no cache held; its other names are cache tiers."""
ELSEWHERE = ("shared", "remote")
"""What other engines computed: the tier that they fill too, and prompts that they handed over."""
_VLLM_SOURCES = {COMPUTED: "local_compute", **dict.fromkeys(ELSEWHERE, "external_kv_transfer")}
_VLLM_HISTOGRAMS = (
    catalog.VLLM_TTFT,
    catalog.VLLM_ITL,
    catalog.VLLM_TPOT,
    catalog.VLLM_E2E,
    catalog.VLLM_QUEUE,
    catalog.VLLM_PREFILL,
    catalog.VLLM_DECODE,
    catalog.VLLM_INFERENCE,
    catalog.VLLM_PROMPT_LENGTH,
    catalog.VLLM_OUTPUT_LENGTH,
)


def phases(record: RequestRecord) -> Iterator[tuple[Metric, float]]:
    """How long a request waited, and how long its parts took, as far as it came; in vLLM's terms."""
    begun, first = record.scheduled, record.first_token
    if begun is None:
        return
    yield catalog.VLLM_QUEUE, begun - record.arrival
    if first is not None:
        last = record.token_times[-1]
        yield catalog.VLLM_PREFILL, first - begun
        yield catalog.VLLM_DECODE, last - first
        yield catalog.VLLM_INFERENCE, last - begun


def _usage(stats: StatsView) -> float | None:
    return stats.blocks_used / stats.blocks_total if stats.blocks_total else None


def _counter(registry: CollectorRegistry, metric: Metric) -> Counter:
    made = Counter(metric.family, metric.help, metric.labels, registry=None)
    registry.register(WithoutCreated(made))
    return made


def _histogram(registry: CollectorRegistry, metric: Metric) -> Histogram:
    made = Histogram(metric.family, metric.help, metric.labels, buckets=metric.buckets, registry=None)
    registry.register(WithoutCreated(made))
    return made


class WithoutCreated(Collector):
    """A metric without its ``_created`` series, which double what is stored and which no board reads.

    The library can only switch them off for the whole process.
    """

    def __init__(self, metric: Collector) -> None:
        self._metric = metric

    def describe(self) -> Iterator[Family]:
        return iter(())

    def collect(self) -> Iterator[Family]:
        for found in self._metric.collect():
            found.samples = [sample for sample in found.samples if not sample.name.endswith("_created")]
            yield found
