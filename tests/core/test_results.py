"""Joules keep their origin, ratios of the unknown are unknown, and a stored result comes back as it was."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from energyopt.core.records import FinishReason, RequestRecord
from energyopt.core.results import (
    EnergyReading,
    EnergySplit,
    EnergyTotal,
    RunResult,
    Scope,
    Source,
    VerdictRecord,
    judge,
    summarize,
    summarize_latencies,
    total_energy,
)
from energyopt.core.slo import Slo, quantile
from energyopt.core.units import Joules, Seconds


def reading(joules: float, source: Source = Source.COUNTER, *, error: float = 0.5, window: float = 2) -> EnergyReading:
    return EnergyReading(
        device="GPU-1",
        joules=Joules(joules),
        error=Joules(error),
        scope=Scope.GPU,
        source=source,
        window=Seconds(window),
    )


def run(**changes: Any) -> RunResult:
    """A measured run of 4 requests, 100 prompt tokens (60 cached), 50 output tokens in 10 s and 20 J."""
    fields: dict[str, Any] = {
        "window": 10.0,
        "requests": 4,
        "failed_requests": 0,
        "prompt_tokens": 100,
        "cached_tokens": 60,
        "output_tokens": 50,
        "energy": total_energy([reading(20)]),
        "power_valid": True,
    }
    return RunResult(**{**fields, **changes})


def request(
    ttft: float = 0.1, *gaps: float, arrival: float = 0.0, reason: FinishReason = FinishReason.LENGTH
) -> RequestRecord:
    times = [arrival + ttft]
    for gap in gaps:
        times.append(times[-1] + gap)
    return RequestRecord(
        request_id="r",
        arrival=Seconds(arrival),
        end=Seconds(times[-1]),
        prompt_tokens=1,
        cached_tokens=0,
        output_tokens=len(times),
        finish_reason=reason,
        token_times=tuple(Seconds(time) for time in times),
    )


def verdict(violation: float | None) -> VerdictRecord:
    return VerdictRecord(
        slo="ttft:p90<500ms", state="x", estimate=None, bound=None, violation=violation, samples=1, confidence=0.95
    )


def test_mean_power() -> None:
    assert reading(5).mean_power == 2.5
    assert reading(5, window=0).mean_power is None


@pytest.mark.parametrize("field", ["joules", "error", "window"])
def test_no_reading_is_negative(field: str) -> None:
    with pytest.raises(ValidationError):
        EnergyReading.model_validate({**reading(1).model_dump(), field: -1e-9})


def test_a_sum_names_every_source_from_best_to_worst() -> None:
    total = total_energy([reading(1, Source.ESTIMATED), reading(2), reading(4, Source.ESTIMATED)])
    assert total == EnergyTotal(joules=Joules(7.0), error=Joules(1.5), sources=(Source.COUNTER, Source.ESTIMATED))
    assert total.label == "counter+estimated"
    single = total_energy([reading(1), reading(2)])
    assert single is not None
    assert single.label == "counter"


def test_a_sum_of_nothing_is_unknown() -> None:
    assert total_energy([]) is None


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_sums_do_not_depend_on_the_order(joules: list[float]) -> None:
    one, other = total_energy([reading(j) for j in joules]), total_energy([reading(j) for j in reversed(joules)])
    assert one == other


def test_the_parts_of_a_split_sum_exactly() -> None:
    split = EnergySplit(prefill=Joules(0.1), decode=Joules(0.2), idle=Joules(0.3), overhead=Joules(1e16))
    assert split.total == math.fsum((0.1, 0.2, 0.3, 1e16))


def test_ratios() -> None:
    result = run()
    assert result.output_rate == 5
    assert result.joules == 20.0
    assert result.tokens_per_joule == 2.5
    assert result.joules_per_request == 5
    assert result.joules_per_uncached_input_token == 0.5
    assert result.hit_rate == 0.6


@pytest.mark.parametrize("changes", [{"energy": None}, {"power_valid": False}, {"energy": None, "power_valid": False}])
def test_without_valid_joules_every_ratio_of_them_is_unknown(changes: dict[str, object]) -> None:
    result = run(**changes)
    assert result.joules is None
    assert result.tokens_per_joule is None
    assert result.joules_per_request is None
    assert result.joules_per_uncached_input_token is None
    assert result.output_rate == 5


def test_a_ratio_to_nothing_is_unknown() -> None:
    assert run(energy=total_energy([reading(0)])).tokens_per_joule is None
    assert run(requests=0).joules_per_request is None
    assert run(prompt_tokens=0, cached_tokens=0).hit_rate is None
    assert run(cached_tokens=100).joules_per_uncached_input_token is None
    assert run(cached_tokens=None).joules_per_uncached_input_token is None
    assert run(cached_tokens=None).hit_rate is None, "a server that does not tell had not no hits"
    assert run(output_tokens=0).tokens_per_joule == 0  # known, and nothing


@pytest.mark.parametrize(
    ("changes", "feasible"),
    [
        ({}, True),
        ({"verdicts": (verdict(0.0), verdict(-0.5))}, True),
        ({"verdicts": (verdict(-0.5), verdict(1e-9))}, False),
        ({"verdicts": (verdict(math.inf),)}, False),
        ({"verdicts": (verdict(None),)}, False),
        ({"failed_requests": 1}, False),
        ({"requests": 0}, False),
        ({"energy": None, "power_valid": False}, True),
    ],
)
def test_feasible(changes: dict[str, object], feasible: bool) -> None:
    assert run(**changes).feasible is feasible


@given(st.lists(st.floats(0, 1e3) | st.just(math.inf), min_size=1))
def test_summaries_agree_with_the_verdicts_quantiles(values: list[float]) -> None:
    summary = summarize(iter(values))
    assert summary is not None
    assert summary.samples == len(values)
    for name, q in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)):
        assert getattr(summary, name) == quantile(values, q)
    assert summary.mean == math.fsum(values) / len(values)


def test_a_metric_without_samples_is_absent() -> None:
    assert summarize([]) is None
    assert summarize_latencies([]) == {}
    single = summarize_latencies([request(0.5)])
    assert set(single) == {"ttft", "e2e"}
    assert single["ttft"].p99 == 0.5


def test_failed_requests_stay_in_the_tail() -> None:
    summaries = summarize_latencies([request(0.5, 0.1)] * 9 + [request(0.01, 0.01, reason=FinishReason.ERROR)])
    assert set(summaries) == {"ttft", "itl", "tpot", "e2e"}
    assert (summaries["ttft"].p90, summaries["ttft"].p99) == (0.5, math.inf)
    assert summaries["e2e"].mean == math.inf


def test_goodput_counts_requests_that_keep_every_latency() -> None:
    slos = [Slo.parse(text) for text in ("ttft:p90<500ms", "itl:p99<100ms", "goodput>1")]
    good, slow, jerky = request(0.4, 0.05, 0.05), request(0.6, 0.05), request(0.4, 0.05, 0.2)
    mute, failed = request(0.4), request(0.4, 0.05, reason=FinishReason.ABORT)
    requests = [good, good, good, slow, jerky, mute, failed]
    ttft, itl, goodput = judge(slos, requests, Seconds(2.0))
    assert (goodput.slo, goodput.estimate, goodput.samples) == ("goodput:mean>1", 1.5, 7)
    assert goodput.violation == pytest.approx(1 / 1.5 - 1)
    assert (ttft.estimate, itl.estimate) == (math.inf, math.inf)
    assert ttft.state == itl.state == "violated"


def test_goodput_alone_counts_all_that_did_not_fail() -> None:
    requests = [request(9.0), request(9.0), request(9.0, reason=FinishReason.ERROR)]
    (goodput,) = judge([Slo.parse("goodput>1")], requests, Seconds(4.0))
    assert goodput.estimate == 0.5


def test_no_requests_no_verdict() -> None:
    verdicts = judge([Slo.parse("ttft:p90<500ms"), Slo.parse("goodput>1")], [], Seconds(1.0))
    assert [(found.state, found.estimate, found.samples) for found in verdicts] == [("unknown", None, 0)] * 2


def test_results_round_trip_through_json_with_their_infinities() -> None:
    latency = summarize([0.1 + 0.2, math.inf])
    assert latency is not None
    result = run(
        latencies={"ttft": latency},
        verdicts=(verdict(math.inf), verdict(None), verdict(-math.inf)),
        energy=total_energy([reading(1 / 3, error=math.inf)]),
        readings=(reading(1 / 3, error=math.inf), reading(0.0, Source.SIMULATED)),
        split=EnergySplit(prefill=Joules(1e-300), decode=Joules(0.0), idle=Joules(1e300), overhead=Joules(2.0)),
        power_reasons=("no meter",),
        hits_by_tier={"device": 60},
        peak_memory_bytes=2**60,
        simulated=True,
    )
    text = result.model_dump_json()
    assert RunResult.model_validate_json(text) == result
    assert RunResult.model_validate(json.loads(text)) == result

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    json.loads(text, parse_constant=refuse)


def test_results_are_frozen_and_strict() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        run().window = Seconds(1.0)  # type: ignore[misc]
    with pytest.raises(ValidationError, match="extra"):
        run(tokens_per_joule=3.0)
    with pytest.raises(ValidationError):
        run(window=0.0)


def test_a_stored_verdict_has_the_numbers_of_the_verdict() -> None:
    slo = Slo.parse("interactivity:p90>20")
    found = slo.judge([request(0.1, *[0.04] * 40)])
    stored = VerdictRecord.of(found)
    assert Slo.parse(stored.slo) == slo
    assert (stored.state, stored.estimate, stored.bound) == (found.state, found.estimate, found.bound)
    assert (stored.violation, stored.samples, stored.confidence) == (found.violation, 40, 0.95)
    assert stored.note == found.note != ""
