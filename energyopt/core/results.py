"""What a measurement says: joules with their origin, and the summary of one run.

Every joule is an ``EnergyReading`` with scope, source and error. Unknown is ``None``, never 0. A sum over several
sources keeps them all, so a screen can say that it mixes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from .records import RequestRecord
from .slo import Slo, SloMetric, Verdict
from .units import Joules, Seconds, Tokens, Watts


class Source(StrEnum):
    """How a joule was obtained, from best to worst."""

    COUNTER = "counter"
    INTEGRATED = "integrated"
    ESTIMATED = "estimated"
    SIMULATED = "simulated"


class Scope(StrEnum):
    """What a sensor covers."""

    GPU = "gpu"
    MODULE = "module"
    MEMORY = "memory"
    SOCKET = "socket"
    CPU_PACKAGE = "cpu_package"
    DRAM = "dram"


class Result(BaseModel):
    """Base of stored results: immutable, strict, and round-trips through JSON (infinities included)."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class EnergyReading(Result):
    """Energy of one sensor over one window. ``error`` is the half-width of its interval in joules."""

    device: str
    joules: Joules = Field(ge=0)
    error: Joules = Field(ge=0)
    scope: Scope
    source: Source
    window: Seconds = Field(ge=0)

    @property
    def mean_power(self) -> Watts | None:
        return Watts(self.joules / self.window) if self.window > 0 else None


class EnergyTotal(Result):
    """A sum of readings. ``sources`` has more than one entry when the sum mixes them; say so where it is shown."""

    joules: Joules
    error: Joules
    sources: tuple[Source, ...]

    @property
    def label(self) -> str:
        """``"counter"`` or ``"counter+estimated"``."""
        return "+".join(self.sources)


def total_energy(readings: Sequence[EnergyReading]) -> EnergyTotal | None:
    """The sum over disjoint sensors; None without readings.

    Errors are added, not in quadrature: sensors of one kind err together.
    """
    if not readings:
        return None
    sources = tuple(source for source in Source if any(r.source is source for r in readings))
    joules, error = math.fsum(r.joules for r in readings), math.fsum(r.error for r in readings)
    return EnergyTotal(joules=Joules(joules), error=Joules(error), sources=sources)


class EnergySplit(Result):
    """A window's energy by what it was spent on; the four parts sum to the sensor's energy over the window.

    ``idle`` is time without a step, ``overhead`` steps that computed for no request.
    """

    prefill: Joules
    decode: Joules
    idle: Joules
    overhead: Joules

    @property
    def total(self) -> Joules:
        return Joules(math.fsum((self.prefill, self.decode, self.idle, self.overhead)))


class LatencySummary(Result):
    """Percentiles (nearest rank, seconds) and mean of one latency over a run's requests."""

    samples: int
    mean: Seconds
    p50: Seconds
    p90: Seconds
    p95: Seconds
    p99: Seconds


class VerdictRecord(Result):
    """A verdict as stored: the SLO in its text form and the numbers behind it; ``over`` samples are beyond it."""

    slo: str
    state: str
    estimate: float | None
    bound: float | None
    violation: float | None
    samples: int
    confidence: float
    note: str = ""
    over: int | None = None

    @classmethod
    def of(cls, verdict: Verdict) -> VerdictRecord:
        return cls(
            slo=str(verdict.slo),
            state=verdict.state.value,
            estimate=verdict.estimate,
            bound=verdict.bound,
            violation=verdict.violation,
            samples=verdict.samples,
            confidence=verdict.confidence,
            note=verdict.note,
            over=verdict.over,
        )


class RunResult(Result):
    """One measured (or simulated) run over its steady-state window.

    Token counts are of the window: ``prompt_tokens`` includes cached ones. Without a meter ``energy`` is None and
    ``power_valid`` False, with the reasons in ``power_reasons``; every ratio with joules is then None.
    ``simulated`` marks a run that no hardware made, ``replayed`` one that was recorded before and is given again: of
    neither is a repetition a measurement. ``prompt_tokens`` and ``cached_tokens`` are None where the engine does not
    tell. ``cut_requests`` were refused because their conversation had outgrown the context: they are in no other
    count, and whether they are failures is a matter of what the baseline serves.
    """

    window: Seconds = Field(gt=0)
    requests: int = Field(ge=0)
    failed_requests: int = Field(ge=0)
    prompt_tokens: Tokens | None = Field(ge=0)
    cached_tokens: Tokens | None = Field(ge=0)
    output_tokens: Tokens = Field(ge=0)
    latencies: Mapping[str, LatencySummary] = Field(default_factory=dict)
    verdicts: tuple[VerdictRecord, ...] = ()
    energy: EnergyTotal | None = None
    readings: tuple[EnergyReading, ...] = ()
    split: EnergySplit | None = None
    power_valid: bool = False
    power_reasons: tuple[str, ...] = ()
    hits_by_tier: Mapping[str, int] = Field(default_factory=dict)
    peak_memory_bytes: int | None = None
    simulated: bool = False
    replayed: bool = False
    cut_requests: int = Field(0, ge=0)

    @property
    def output_rate(self) -> float:
        """Output tokens per second."""
        return self.output_tokens / self.window

    @property
    def joules(self) -> Joules | None:
        return self.energy.joules if self.energy and self.power_valid else None

    @property
    def tokens_per_joule(self) -> float | None:
        """Output tokens per joule: the one number."""
        return _ratio(self.output_tokens, self.joules)

    @property
    def joules_per_request(self) -> float | None:
        return _ratio(self.joules, self.requests)

    @property
    def uncached_tokens(self) -> Tokens | None:
        """Input tokens that had to be computed."""
        if self.prompt_tokens is None or self.cached_tokens is None:
            return None
        return Tokens(self.prompt_tokens - self.cached_tokens)

    @property
    def joules_per_uncached_input_token(self) -> float | None:
        """All joules over the input tokens that had to be computed."""
        return _ratio(self.joules, self.uncached_tokens)

    @property
    def hit_rate(self) -> float | None:
        """Share of prompt tokens that came from a cache."""
        return _ratio(self.cached_tokens, self.prompt_tokens)

    @property
    def feasible(self) -> bool:
        """Every SLO is met by its estimate, some request finished and none failed."""
        met = all(v.violation is not None and v.violation <= 0 for v in self.verdicts)
        return met and self.requests > 0 and self.failed_requests == 0


def summarize(values: Iterable[float]) -> LatencySummary | None:
    """Percentiles of samples (seconds); None without samples. An infinite sample (a failed request) stays infinite."""
    ordered = sorted(values)
    if not ordered:
        return None

    def rank(q: float) -> Seconds:
        return Seconds(ordered[max(0, math.ceil(q * len(ordered) - 1e-9) - 1)])

    mean = Seconds(math.fsum(ordered) / len(ordered))
    return LatencySummary(samples=len(ordered), mean=mean, p50=rank(0.5), p90=rank(0.9), p95=rank(0.95), p99=rank(0.99))


def summarize_latencies(requests: Sequence[RequestRecord]) -> dict[str, LatencySummary]:
    """Summaries of ttft, itl, tpot and e2e; a metric without samples is absent."""
    summaries = {}
    for metric in (SloMetric.TTFT, SloMetric.ITL, SloMetric.TPOT, SloMetric.E2E):
        summary = summarize(Slo.samples_of(metric, requests))
        if summary is not None:
            summaries[metric.value] = summary
    return summaries


def judge(slos: Sequence[Slo], requests: Sequence[RequestRecord], window: Seconds) -> tuple[VerdictRecord, ...]:
    """The verdict of a run on every SLO.

    Goodput counts the requests that meet the target of every latency SLO on their own, per second of the window;
    a request without a sample for one of them is not good.
    """
    latency = [slo for slo in slos if slo.metric is not SloMetric.GOODPUT]
    verdicts = []
    for slo in slos:
        if slo.metric is SloMetric.GOODPUT:
            good = sum(all(_keeps(request, other) for other in latency) for request in requests if not request.failed)
            verdicts.append(slo.judge_rate(good / window if requests else None, len(requests)))
        else:
            verdicts.append(slo.judge(requests))
    return tuple(VerdictRecord.of(verdict) for verdict in verdicts)


def _keeps(request: RequestRecord, slo: Slo) -> bool:
    estimate = slo.judge([request]).violation
    return estimate is not None and estimate <= 0


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    if numerator is None or denominator is None or denominator <= 0:
        return None
    return numerator / denominator
