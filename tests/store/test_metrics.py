"""The numbers of a run by name: each is the run's own, and the unknown is absent."""

from __future__ import annotations

import math

from energyopt.core.results import EnergySplit, RunResult
from energyopt.core.units import Joules, Seconds, Tokens
from energyopt.store.metrics import metrics_of


def test_all_numbers_of_a_measured_run(result: RunResult) -> None:
    split = EnergySplit(prefill=Joules(1.0), decode=Joules(0.5), idle=Joules(0.2), overhead=Joules(0.1))
    values = metrics_of(result.model_copy(update={"split": split}))
    assert values == {
        "window": 2.5,
        "requests": 3,
        "failed_requests": 1,
        "prompt_tokens": 100,
        "cached_tokens": 40,
        "output_tokens": 9,
        "output_rate": 9 / 2.5,
        "joules": result.joules,
        "joules_error": math.inf,
        "tokens_per_joule": result.tokens_per_joule,
        "joules_per_request": result.joules_per_request,
        "joules_per_uncached_input_token": result.joules_per_uncached_input_token,
        "hit_rate": 0.4,
        "peak_memory_bytes": 2**40,
        "slo_violation": math.inf,
        "ttft_mean": math.inf,
        "ttft_p50": 0.5,
        "ttft_p90": math.inf,
        "ttft_p95": math.inf,
        "ttft_p99": math.inf,
        "joules_prefill": 1.0,
        "joules_decode": 0.5,
        "joules_idle": 0.2,
        "joules_overhead": 0.1,
        "cached_tokens_device": 40,
    }


def test_joules_of_an_invalid_measurement_do_not_count(result: RunResult) -> None:
    values = metrics_of(result.model_copy(update={"power_valid": False}))
    assert not [name for name in values if "joule" in name]
    assert values["output_rate"] == 9 / 2.5


def test_the_unknown_is_absent() -> None:
    nothing = RunResult(
        window=Seconds(1.0),
        requests=0,
        failed_requests=0,
        prompt_tokens=Tokens(0),
        cached_tokens=Tokens(0),
        output_tokens=Tokens(0),
    )
    counts = {"requests", "failed_requests", "prompt_tokens", "cached_tokens", "output_tokens", "output_rate"}
    assert metrics_of(nothing) == {"window": 1.0, **dict.fromkeys(counts, 0)}


def test_the_worst_violation_needs_all_of_them(result: RunResult) -> None:
    kept = result.verdicts[1]
    unknown = kept.model_copy(update={"violation": None})
    assert metrics_of(result.model_copy(update={"verdicts": (kept, kept)}))["slo_violation"] == -0.5
    assert "slo_violation" not in metrics_of(result.model_copy(update={"verdicts": (kept, unknown)}))
