"""Objectives parse or are refused by name; bounds keep their confidence; a failure is never a fast request."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from energyopt.core.errors import SloError
from energyopt.core.records import FinishReason, RequestRecord
from energyopt.core.slo import (
    Slo,
    SloMetric,
    Statistic,
    VerdictState,
    estimate_and_bound,
    quantile,
    quantile_upper_bound,
)
from energyopt.core.units import Seconds


def request(*gaps: float, ttft: float = 0.1, reason: FinishReason = FinishReason.LENGTH) -> RequestRecord:
    """A request that arrived at 0 and got one token more than it has gaps."""
    times = [ttft]
    for gap in gaps:
        times.append(times[-1] + gap)
    return RequestRecord(
        request_id="r",
        arrival=Seconds(0.0),
        end=Seconds(times[-1]),
        prompt_tokens=1,
        cached_tokens=0,
        output_tokens=len(times),
        finish_reason=reason,
        token_times=tuple(Seconds(time) for time in times),
    )


@pytest.mark.parametrize(
    ("text", "metric", "statistic", "target", "canonical"),
    [
        ("ttft:p90<500ms", SloMetric.TTFT, Statistic.P90, 0.5, "ttft:p90<500ms"),
        (" itl:p99 <= 50ms ", SloMetric.ITL, Statistic.P99, 0.05, "itl:p99<50ms"),
        ("tpot:mean<0.02s", SloMetric.TPOT, Statistic.MEAN, 0.02, "tpot:mean<20ms"),
        ("e2e:p50<2min", SloMetric.E2E, Statistic.P50, 120, "e2e:p50<120000ms"),
        ("interactivity:p95>=20", SloMetric.INTERACTIVITY, Statistic.P95, 20, "interactivity:p95>20"),
        ("goodput>2.5", SloMetric.GOODPUT, Statistic.MEAN, 2.5, "goodput:mean>2.5"),
        ("goodput:mean>1e-2", SloMetric.GOODPUT, Statistic.MEAN, 0.01, "goodput:mean>0.01"),
    ],
)
def test_objectives(text: str, metric: SloMetric, statistic: Statistic, target: float, canonical: str) -> None:
    slo = Slo.parse(text)
    assert (slo.metric, slo.statistic) == (metric, statistic)
    assert slo.target == pytest.approx(target, rel=1e-15)
    assert str(slo) == canonical


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not an SLO: write METRIC:STATISTIC<TARGET, as in ttft:p90<500ms."),
        ("ttft:p90", "'ttft:p90' is not an SLO: write METRIC:STATISTIC<TARGET, as in ttft:p90<500ms."),
        (
            "speed:p90<1s",
            "'speed:p90<1s': unknown metric 'speed'; allowed are ttft, itl, tpot, e2e, interactivity, goodput.",
        ),
        ("ttft:p80<1s", "'ttft:p80<1s': unknown statistic 'p80'; allowed are mean, p50, p90, p95, p99."),
        ("ttft<1s", "'ttft<1s' names no statistic; write ttft:p90, or one of mean, p50, p90, p95, p99."),
        ("goodput:p90>1", "'goodput:p90>1': goodput is a rate over the run and takes no statistic but mean."),
        ("ttft:p90>1s", "'ttft:p90>1s': ttft is bounded above, with <."),
        ("goodput<1", "'goodput<1': goodput is bounded below, with >."),
        ("ttft:p90<500", "'ttft:p90<500': 500 has no unit; write 500ms or 500s."),
        ("ttft:p90<fast", "'ttft:p90<fast': 'fast' is not a duration such as 500ms."),
        ("ttft:p90<5W", "'ttft:p90<5W': '5W' is not a duration such as 500ms."),
        ("ttft:p90<inf", "'ttft:p90<inf': 'inf' is not a duration such as 500ms."),
        ("goodput>many", "'goodput>many': 'many' is not a number."),
        ("ttft:p90<0ms", "'ttft:p90<0ms': the target must be a finite number above 0."),
        ("goodput>-1", "'goodput>-1': the target must be a finite number above 0."),
        ("goodput>nan", "'goodput>nan': the target must be a finite number above 0."),
        ("goodput>inf", "'goodput>inf': the target must be a finite number above 0."),
    ],
)
def test_what_is_no_objective(text: str, message: str) -> None:
    with pytest.raises(SloError) as caught:
        Slo.parse(text)
    assert caught.value.message == message


METRICS = st.sampled_from([metric for metric in SloMetric if metric is not SloMetric.GOODPUT])


@given(METRICS, st.sampled_from(Statistic), st.floats(1e-9, 1e9))
def test_the_text_form_says_the_same_objective(metric: SloMetric, statistic: Statistic, target: float) -> None:
    slo = Slo(metric, statistic, target)
    assert Slo.parse(str(slo)) == slo


@given(st.floats(1e-9, 1e9))
def test_the_text_form_of_a_rate(target: float) -> None:
    slo = Slo(SloMetric.GOODPUT, Statistic.MEAN, target)
    assert Slo.parse(str(slo)) == slo


@given(st.lists(st.integers(0, 20), min_size=1), st.integers(1, 100))
def test_a_quantile_is_the_smallest_sample_that_covers_its_share(values: list[int], percent: int) -> None:
    found, needed = quantile(values, percent / 100), Fraction(percent, 100) * len(values)
    assert found in values
    assert sum(value <= found for value in values) >= needed
    assert sum(value < found for value in values) < needed


def test_no_quantile_of_nothing() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        quantile([], 0.5)


@pytest.mark.parametrize("q", [0.5, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_the_bound_is_the_lowest_that_keeps_its_confidence(q: float, confidence: float) -> None:
    """Against the exact binomial distribution: the k-th smallest of n covers with probability P(Binomial < k)."""
    for n in [*range(1, 70), 299, 300, 500, 1000, 5000]:
        bound = quantile_upper_bound(range(1, n + 1), q, confidence)
        if bound is None:
            assert stats.binom.cdf(n - 1, n, q) < confidence, n
        else:
            assert stats.binom.cdf(bound - 2, n, q) < confidence <= stats.binom.cdf(bound - 1, n, q), n


@pytest.mark.parametrize(("statistic", "samples"), [(Statistic.P90, 29), (Statistic.P95, 59), (Statistic.P99, 299)])
def test_below_a_number_of_samples_there_is_no_bound(statistic: Statistic, samples: int) -> None:
    q = statistic.quantile
    assert q is not None
    assert quantile_upper_bound([1.0] * (samples - 1), q) is None
    assert quantile_upper_bound([1.0] * samples, q) == 1.0


@pytest.mark.parametrize(("n", "q"), [(60, 0.9), (100, 0.95), (40, 0.5)])
def test_the_bound_covers_as_often_as_it_says(n: int, q: float) -> None:
    chance, runs, truth = random.Random(n), 4000, -math.log(1 - q)
    covered = 0
    for _ in range(runs):
        bound = quantile_upper_bound([chance.expovariate(1) for _ in range(n)], q)
        assert bound is not None
        covered += bound >= truth
    assert covered / runs >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / runs)


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=80), st.sampled_from(Statistic))
def test_a_bound_is_not_below_its_estimate(values: list[float], statistic: Statistic) -> None:
    estimate, bound = estimate_and_bound(values, statistic)
    assert estimate is not None
    assert bound is None or bound >= estimate


def test_the_bound_of_a_mean_is_one_sided_and_needs_eight_samples() -> None:
    values = [1.0, 2.0] * 8
    estimate, bound = estimate_and_bound(values, Statistic.MEAN)
    assert estimate == 1.5
    assert bound == pytest.approx(1.5 + stats.norm.ppf(0.95) * stats.sem(values))
    assert estimate_and_bound([1.0] * 7, Statistic.MEAN) == (1.0, None)
    assert estimate_and_bound([1.0] * 9 + [math.inf], Statistic.MEAN) == (math.inf, None)
    assert estimate_and_bound([], Statistic.MEAN) == (None, None)


def test_samples_of_each_metric() -> None:
    requests = [request(0.2, 0.4, ttft=0.1), request(ttft=0.3)]
    samples = {metric: Slo.samples_of(metric, requests) for metric in SloMetric if metric is not SloMetric.GOODPUT}
    assert samples[SloMetric.TTFT] == [0.1, 0.3]
    assert samples[SloMetric.E2E] == pytest.approx([0.7, 0.3])
    assert samples[SloMetric.ITL] == samples[SloMetric.INTERACTIVITY] == pytest.approx([0.2, 0.4])
    assert samples[SloMetric.TPOT] == pytest.approx([0.3])  # one token has no time per token
    with pytest.raises(ValueError, match="goodput"):
        Slo.samples_of(SloMetric.GOODPUT, requests)


@pytest.mark.parametrize("reason", [FinishReason.ERROR, FinishReason.ABORT])
@pytest.mark.parametrize("metric", [metric for metric in SloMetric if metric is not SloMetric.GOODPUT])
def test_a_failed_request_is_infinitely_late(metric: SloMetric, reason: FinishReason) -> None:
    failed = request(0.001, ttft=0.001, reason=reason)
    assert Slo.samples_of(metric, [failed]) == [math.inf]
    higher = metric is SloMetric.INTERACTIVITY
    verdict = Slo(metric, Statistic.P99, 1.0).judge([request(0.001, ttft=0.001)] * 9 + [failed])
    assert verdict.estimate == (0 if higher else math.inf)
    assert verdict.violation == math.inf
    assert (verdict.state, verdict.met, verdict.margin) == (VerdictState.VIOLATED, False, -math.inf)


@pytest.mark.parametrize(
    ("ttfts", "state", "violation"),
    [
        ([0.4] * 30, VerdictState.MET, -0.2),
        ([0.4] * 20, VerdictState.UNCERTAIN, -0.2),  # too few for a bound
        ([0.4] * 27 + [0.9] * 3, VerdictState.UNCERTAIN, -0.2),  # the bound is 0.9
        ([0.75] * 30, VerdictState.VIOLATED, 0.5),
        ([0.5] * 30, VerdictState.MET, 0),
        ([], VerdictState.UNKNOWN, None),
    ],
)
def test_verdicts(ttfts: list[float], state: VerdictState, violation: float | None) -> None:
    verdict = Slo.parse("ttft:p90<500ms").judge([request(ttft=ttft) for ttft in ttfts])
    assert (verdict.state, verdict.samples) == (state, len(ttfts))
    assert verdict.violation == (None if violation is None else pytest.approx(violation))
    assert verdict.margin == (None if violation is None else pytest.approx(-violation))
    assert verdict.met is (state in (VerdictState.MET, VerdictState.UNCERTAIN))


def test_a_bound_below_the_confidence_asked_for_is_none() -> None:
    requests = [request(ttft=0.4)] * 30
    slo = Slo.parse("ttft:p90<500ms")
    assert slo.judge(requests, confidence=0.95).state is VerdictState.MET
    assert slo.judge(requests, confidence=0.99).state is VerdictState.UNCERTAIN


def test_interactivity_is_the_inverse_of_the_gaps() -> None:
    requests = [request(*[0.04] * 30), request(*[0.1] * 3)]
    verdict = Slo.parse("interactivity:p95>8").judge(requests)
    assert verdict.estimate == pytest.approx(10)  # the slowest twentieth
    assert verdict.violation == pytest.approx(-0.2)
    assert Slo.parse("interactivity:p50>20").judge(requests).estimate == pytest.approx(25)
    assert "not independent" in verdict.note
    assert Slo.parse("interactivity:p50>20").judge([request(0.0)]).estimate == math.inf


def test_a_rate_has_no_bound_of_its_own() -> None:
    slo = Slo.parse("goodput>2")
    assert slo.judge_rate(3.0, 9).state is VerdictState.MET
    assert slo.judge_rate(1.0, 9).violation == 1
    assert slo.judge_rate(0.0, 9).violation == math.inf
    assert slo.judge_rate(None, 0).state is VerdictState.UNKNOWN
