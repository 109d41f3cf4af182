"""Latency objectives: ``Slo.parse("ttft:p90<500ms")`` and their verdicts.

A verdict is about the percentile of the *population*, of which a run is a sample. The bound comes from order
statistics and assumes no distribution (David and Nagaraja, Order Statistics, 3rd ed., section 7.1): of n independent
samples the k-th smallest lies above the q-quantile with probability P(Binomial(n, q) < k), so the smallest k with
that probability >= the confidence gives an upper bound. With too few samples no such k exists and the bound is None.
The samples of one request's gaps (ITL) are not independent; their bound is optimistic, and says so in ``note``.

The bound of a mean is the normal approximation of its standard error, absent below 8 samples.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist, fmean, stdev
from typing import TypeVar

from .errors import ConfigError, SloError
from .records import RequestRecord
from .units import Seconds, parse_seconds

CONFIDENCE = 0.95
"""Default one-sided confidence of a verdict's bound."""


class SloMetric(StrEnum):
    """What is bounded. ``interactivity`` is 1/ITL in tokens per second; ``goodput`` is good requests per second."""

    TTFT = "ttft"
    ITL = "itl"
    TPOT = "tpot"
    E2E = "e2e"
    INTERACTIVITY = "interactivity"
    GOODPUT = "goodput"


class Statistic(StrEnum):
    MEAN = "mean"
    P50 = "p50"
    P90 = "p90"
    P95 = "p95"
    P99 = "p99"

    @property
    def quantile(self) -> float | None:
        """0.9 for p90; None for the mean."""
        return None if self is Statistic.MEAN else int(self.value[1:]) / 100


class VerdictState(StrEnum):
    """``UNCERTAIN``: the estimate keeps the target but its bound does not, or there are too few samples to say."""

    MET = "met"
    UNCERTAIN = "uncertain"
    VIOLATED = "violated"
    UNKNOWN = "unknown"


HIGHER_IS_BETTER = frozenset({SloMetric.INTERACTIVITY, SloMetric.GOODPUT})
_FORM = re.compile(r"\s*([a-z0-9]+)(?::([a-z0-9]+))?\s*(<=?|>=?)\s*(\S+)\s*")


@dataclass(frozen=True, slots=True)
class Slo:
    """One objective. ``target`` is seconds for latencies, tokens/s for interactivity, requests/s for goodput."""

    metric: SloMetric
    statistic: Statistic
    target: float

    @classmethod
    def parse(cls, text: str) -> Slo:
        """``ttft:p90<500ms``, ``interactivity:p90>20``, ``goodput>2``. Raises SloError naming what is allowed."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise SloError(f"{text!r} is not an SLO: write METRIC:STATISTIC<TARGET, as in ttft:p90<500ms.")
        metric = _member(SloMetric, match.group(1), text, "metric")
        statistic = _member(Statistic, match.group(2) or _default_statistic(metric, text), text, "statistic")
        if metric is SloMetric.GOODPUT and statistic is not Statistic.MEAN:
            raise SloError(f"{text!r}: goodput is a rate over the run and takes no statistic but mean.")
        higher = metric in HIGHER_IS_BETTER
        if match.group(3).startswith(">") != higher:
            raise SloError(f"{text!r}: {metric} is bounded {'below, with >' if higher else 'above, with <'}.")
        return cls(metric, statistic, _target(match.group(4), text, higher))

    def __str__(self) -> str:
        """The text form: ``parse`` makes exactly this objective of it, with more digits where six do not do."""
        if self.metric in HIGHER_IS_BETTER:
            short = f"{self.target:g}"
            return f"{self.metric}:{self.statistic}>{short if float(short) == self.target else repr(self.target)}"
        short = f"{self.target * 1e3:g}ms"
        exact = parse_seconds(short) == self.target
        return f"{self.metric}:{self.statistic}<{short if exact else f'{self.target!r}s'}"

    @property
    def longest(self) -> Seconds:
        """The longest sample that keeps the target; of interactivity the gap."""
        return Seconds(1 / self.target if self.metric is SloMetric.INTERACTIVITY else self.target)

    @staticmethod
    def samples_of(metric: SloMetric, requests: Iterable[RequestRecord]) -> list[float]:
        """The samples of ``metric`` in a run: seconds; the gaps themselves for interactivity.

        A failed request counts as infinite latency, never as absent. Raises ValueError for goodput, which has none.
        """
        if metric is SloMetric.GOODPUT:
            raise ValueError("goodput is a rate over the run and has no samples.")
        values: list[float] = []
        for request in requests:
            values.extend(_latencies(metric, request))
        return values

    def judge(self, requests: Sequence[RequestRecord], *, confidence: float = CONFIDENCE) -> Verdict:
        """The verdict on one run. Goodput is judged by ``judge_rate``."""
        values = self.samples_of(self.metric, requests)
        estimate, bound = estimate_and_bound(values, self.statistic, confidence)
        if self.metric is SloMetric.INTERACTIVITY:
            estimate, bound = _inverse(estimate), _inverse(bound)
        note = (
            "gaps of one request are not independent" if self.metric in (SloMetric.ITL, SloMetric.INTERACTIVITY) else ""
        )
        return self._verdict(estimate, bound, len(values), confidence, note, self._over(values))

    def judge_rate(self, rate: float | None, samples: int) -> Verdict:
        """The verdict on a rate over the run (goodput): it has no bound of its own."""
        return self._verdict(rate, rate, samples, CONFIDENCE, "a rate over one run has no confidence bound")

    def _over(self, values: Sequence[float]) -> int | None:
        """Samples (seconds) beyond the target; None for a mean, which single samples neither keep nor miss."""
        if self.statistic is Statistic.MEAN:
            return None
        return sum(value > self.longest for value in values)

    def _verdict(
        self,
        estimate: float | None,
        bound: float | None,
        n: int,
        confidence: float,
        note: str,
        over: int | None = None,
    ) -> Verdict:
        return Verdict(self, estimate, bound, n, confidence, note, over)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a run stands to an SLO.

    ``estimate`` is the sample statistic, ``bound`` its one-sided confidence bound (upper for latencies, lower where
    higher is better), None where there are too few samples. ``over`` counts the samples beyond the target: unlike
    bounds, counts of several runs add up.
    """

    slo: Slo
    estimate: float | None
    bound: float | None
    samples: int
    confidence: float
    note: str = ""
    over: int | None = None

    @property
    def violation(self) -> float | None:
        """Relative excess of the estimate: ``value/target - 1``, or ``target/value - 1`` where higher is better.

        At most 0 keeps the SLO; None is unknown.
        """
        return _violation(self.slo, self.estimate)

    @property
    def margin(self) -> float | None:
        """Room left relative to the target: positive keeps the SLO."""
        violation = self.violation
        return None if violation is None else -violation

    @property
    def state(self) -> VerdictState:
        violation, bounded = self.violation, _violation(self.slo, self.bound)
        if violation is None:
            return VerdictState.UNKNOWN
        if violation > 0:
            return VerdictState.VIOLATED
        return VerdictState.MET if bounded is not None and bounded <= 0 else VerdictState.UNCERTAIN

    @property
    def met(self) -> bool:
        """True if the estimate keeps the target (certain or not); unknown is not met."""
        return self.state in (VerdictState.MET, VerdictState.UNCERTAIN)


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest sample that at least ``q`` of the samples do not exceed (nearest rank: always a real sample).

    Raises ValueError on no samples.
    """
    if not values:
        raise ValueError("a quantile needs at least one sample.")
    return sorted(values)[max(0, math.ceil(q * len(values) - 1e-9) - 1)]


def quantile_upper_bound(values: Sequence[float], q: float, confidence: float = CONFIDENCE) -> float | None:
    """Distribution-free upper bound of the q-quantile, or None if ``len(values)`` cannot give that confidence."""
    n, alpha, tail, k = len(values), 1 - confidence, 0.0, len(values) + 1
    while k > 1:
        tail += math.exp(_log_binomial(n, k - 1, q))  # now P(Binomial(n, q) >= k - 1)
        if tail > alpha:
            break
        k -= 1
    return sorted(values)[k - 1] if k <= n else None


def quantile_kept(samples: int, over: int, q: float, confidence: float = CONFIDENCE) -> bool:
    """Whether the q-quantile of a population keeps its target for sure if ``over`` of ``samples`` are beyond it.

    The same as the upper bound of ``quantile_upper_bound`` being at most the target, from the two counts alone.
    """
    within = samples - over
    tail = math.fsum(math.exp(_log_binomial(samples, k, q)) for k in range(max(0, within), samples + 1))
    return samples > 0 and tail <= 1 - confidence


def samples_needed(q: float, confidence: float = CONFIDENCE) -> int:
    """The fewest samples that can make a q-quantile sure, all of them within the target."""
    return math.ceil(math.log(1 - confidence) / math.log(q))


def _log_binomial(n: int, k: int, q: float) -> float:
    choose = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return choose + k * math.log(q) + (n - k) * math.log1p(-q)


def estimate_and_bound(
    values: Sequence[float], statistic: Statistic, confidence: float = CONFIDENCE
) -> tuple[float | None, float | None]:
    """Sample statistic and its upper confidence bound; None where the samples do not carry one."""
    if not values:
        return None, None
    q = statistic.quantile
    if q is not None:
        return quantile(values, q), quantile_upper_bound(values, q, confidence)
    mean = fmean(values)
    if len(values) < 8 or not math.isfinite(mean):
        return mean, None
    return mean, mean + NormalDist().inv_cdf(confidence) * stdev(values) / math.sqrt(len(values))


def _latencies(metric: SloMetric, request: RequestRecord) -> Sequence[float]:
    if request.failed:
        return [math.inf]
    if metric in (SloMetric.ITL, SloMetric.INTERACTIVITY):
        return request.gaps
    value = {SloMetric.TTFT: request.ttft, SloMetric.TPOT: request.tpot, SloMetric.E2E: request.e2e}[metric]
    return [] if value is None else [value]


def _violation(slo: Slo, value: float | None) -> float | None:
    if value is None:
        return None
    if slo.metric in HIGHER_IS_BETTER:
        return slo.target / value - 1 if value > 0 else math.inf
    return value / slo.target - 1


def _inverse(value: float | None) -> float | None:
    return None if value is None else (1 / value if value > 0 else math.inf)


E = TypeVar("E", bound=StrEnum)


def _member(kind: type[E], word: str, text: str, what: str) -> E:
    try:
        return kind(word)
    except ValueError as error:
        raise SloError(f"{text!r}: unknown {what} {word!r}; allowed are {', '.join(kind)}.") from error


def _default_statistic(metric: SloMetric, text: str) -> str:
    if metric is SloMetric.GOODPUT:
        return Statistic.MEAN
    raise SloError(f"{text!r} names no statistic; write {metric}:p90, or one of {', '.join(Statistic)}.")


def _target(word: str, text: str, rate: bool) -> float:
    try:
        value: float = float(word) if rate else parse_seconds(word)
    except (ValueError, ConfigError) as error:
        raise SloError(f"{text!r}: {word!r} is not {'a number' if rate else 'a duration such as 500ms'}.") from error
    if not rate and not word.strip()[-1:].isalpha():  # 500 is seconds to one and milliseconds to another
        raise SloError(f"{text!r}: {word.strip()} has no unit; write {word.strip()}ms or {word.strip()}s.")
    if not (math.isfinite(value) and value > 0):
        raise SloError(f"{text!r}: the target must be a finite number above 0.")
    return Seconds(value)
