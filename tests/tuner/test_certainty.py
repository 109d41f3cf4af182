"""Counts of several runs decide like the bound of their samples, and doubt says what would remove it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.results import RunResult, VerdictRecord
from energyopt.core.slo import quantile_kept, quantile_upper_bound, samples_needed
from energyopt.core.units import Seconds, Tokens
from tuner.certainty import doubts, say

SLO = "ttft:p90<500ms"


def run(samples: int, over: int | None, slo: str = SLO) -> RunResult:
    verdict = VerdictRecord(
        slo=slo, state="", estimate=0.4, bound=None, violation=-0.2, samples=samples, confidence=0.95, over=over
    )
    return RunResult(
        window=Seconds(1.0),
        requests=1,
        failed_requests=0,
        prompt_tokens=Tokens(1),
        cached_tokens=Tokens(0),
        output_tokens=Tokens(1),
        verdicts=(verdict,),
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 400), st.sampled_from([0.5, 0.9, 0.95, 0.99]), st.randoms(use_true_random=False))
def test_two_counts_decide_as_the_bound_of_the_samples_does(count: int, q: float, rng: random.Random) -> None:
    values = [rng.random() for _ in range(count)]
    target = rng.choice([0.3, 0.6, 0.93, 0.98, 1.0])
    bound = quantile_upper_bound(values, q)
    over = sum(value > target for value in values)
    assert quantile_kept(count, over, q) == (bound is not None and bound <= target)


@pytest.mark.parametrize(("q", "needed"), [(0.5, 5), (0.9, 29), (0.95, 59), (0.99, 299)])
def test_the_fewest_samples_that_can_be_sure(q: float, needed: int) -> None:
    assert samples_needed(q) == needed
    assert quantile_kept(needed, 0, q)
    assert not quantile_kept(needed - 1, 0, q)
    assert not quantile_kept(0, 0, q)


def test_runs_that_are_unsure_alone_are_sure_together() -> None:
    assert doubts([run(20, 0)])
    assert not doubts([run(20, 0), run(20, 0)])


def test_a_doubt_tells_few_samples_from_many_excesses() -> None:
    (few,) = doubts([run(20, 0)])
    (many,) = doubts([run(100, 8)])
    assert few.too_few
    assert not many.too_few
    assert say([few]) == "ttft:p90<500ms (0 of 20 samples exceed it, at least 29 are needed)"


def test_what_has_no_counts_is_as_sure_as_its_estimate() -> None:
    assert not doubts([run(20, None)])
    assert not doubts([run(1, None, "goodput>1")])
    assert not doubts([])


def of_mean(mean: float, bound: float | None, samples: int = 20, slo: str = "ttft:mean<500ms") -> RunResult:
    verdict = run(samples, None, slo).verdicts[0].model_copy(update={"estimate": mean, "bound": bound})
    return run(samples, None).model_copy(update={"verdicts": (verdict,)})


def test_a_mean_is_kept_for_sure_only_with_its_bound() -> None:
    assert not doubts([of_mean(0.4, 0.49)])
    (wide,) = doubts([of_mean(0.4, 0.6)])
    assert str(wide) == "ttft:mean<500ms (the bound of the mean of 20 samples is 600 ms)"
    assert not wide.too_few
    (few,) = doubts([of_mean(0.4, None, samples=3)])
    assert few.too_few
    assert "3 samples tell no bound of a mean, at least 8 are needed" in str(few)


def test_means_of_several_runs_are_surer_together() -> None:
    """Four runs halve the error: 0.4 + 0.18 / 2."""
    assert doubts([of_mean(0.4, 0.58)])
    assert not doubts([of_mean(0.4, 0.58)] * 4)


def test_the_mean_of_an_interactivity_is_that_of_its_gaps() -> None:
    """25 tokens/s with a bound of 21 are gaps of 40 ms and 47.6 ms."""
    slo = "interactivity:mean>20"
    assert not doubts([of_mean(25.0, 21.0, slo=slo)])
    assert doubts([of_mean(25.0, 19.0, slo=slo)])
