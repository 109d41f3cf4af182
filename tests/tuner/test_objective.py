"""A score says feasible exactly when everything was kept, and nothing in it can mislead a search library."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energyopt.core.errors import (
    CrashError,
    LaunchError,
    OutOfMemoryError,
    SloError,
    TrialError,
    TrialTimeoutError,
)
from energyopt.core.results import EnergyTotal, RunResult, Source, VerdictRecord
from energyopt.core.study import TrialOutcome
from energyopt.core.units import Joules, Seconds, Tokens
from tuner.objective import COMPLETES, FITS, Objective, Score, learnable, outcome_of

SLOS = ("ttft:p90<500ms", "itl:p99<50ms")
OBJECTIVE = Objective("tokens_per_joule", SLOS)


def verdict(slo: str, violation: float | None) -> VerdictRecord:
    return VerdictRecord(slo=slo, state="", estimate=None, bound=None, violation=violation, samples=9, confidence=0.95)


def run(
    *violations: float | None, joules: float | None = 50.0, tokens: int = 100, requests: int = 9, failed: int = 0
) -> RunResult:
    energy = None if joules is None else EnergyTotal(joules=Joules(joules), error=Joules(0), sources=(Source.COUNTER,))
    return RunResult(
        window=Seconds(10.0),
        requests=requests,
        failed_requests=failed,
        prompt_tokens=Tokens(10),
        cached_tokens=Tokens(0),
        output_tokens=Tokens(tokens),
        verdicts=tuple(verdict(slo, v) for slo, v in zip(SLOS, violations, strict=False)),
        energy=energy,
        power_valid=energy is not None,
    )


def test_the_value_is_the_logarithm_of_what_is_maximised() -> None:
    assert OBJECTIVE.score(run(-0.1, -0.2)).value == pytest.approx(math.log(2.0))
    assert Objective("output_rate", SLOS).score(run(-0.1, -0.2, joules=None)).value == pytest.approx(math.log(10.0))


def test_unmeasured_joules_and_no_tokens_are_no_value_and_never_zero() -> None:
    assert OBJECTIVE.score(run(-0.1, -0.2, joules=None)).value is None
    assert OBJECTIVE.score(run(-0.1, -0.2, tokens=0)).value is None


def test_violations_are_relative_clipped_and_named_by_slo() -> None:
    score = OBJECTIVE.score(run(7.0, -3.0))
    assert list(score.constraints.items()) == [(FITS, -1), (COMPLETES, -1), (SLOS[0], 1), (SLOS[1], -1)]


def test_a_failure_breaks_every_constraint_in_the_same_order() -> None:
    score = OBJECTIVE.score(None)
    assert list(score.constraints) == list(OBJECTIVE.keys)
    assert set(score.constraints.values()) == {1.0}
    assert score.value is None


@pytest.mark.parametrize(
    "result",
    [
        run(-0.5),  # the second SLO was not judged
        run(-0.5, None),
        run(-0.5, math.nan),
        run(-0.5, math.inf),
        run(-0.5, 0.001),
        run(-0.5, -0.5, failed=1),
        run(-0.5, -0.5, requests=0),
    ],
)
def test_what_was_not_shown_to_be_kept_is_infeasible(result: RunResult) -> None:
    assert OBJECTIVE.outcome(result) is TrialOutcome.INFEASIBLE


def test_exactly_on_the_target_is_feasible() -> None:
    assert OBJECTIVE.outcome(run(0.0, 0.0)) is TrialOutcome.FEASIBLE


def test_spellings_of_one_slo_are_one_constraint() -> None:
    assert Objective("output_rate", ["ttft:p90<0.5s", "ttft:p90<500ms"]).keys == (FITS, COMPLETES, "ttft:p90<500ms")
    with pytest.raises(SloError):
        Objective("output_rate", ["ttft:p42<1s"])


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (OutOfMemoryError("x"), TrialOutcome.OOM),
        (LaunchError("x"), TrialOutcome.LAUNCH_FAILED),
        (CrashError("x"), TrialOutcome.CRASHED),
        (TrialTimeoutError("x"), TrialOutcome.TIMEOUT),
        (TrialError("x"), TrialOutcome.FAILED),
    ],
)
def test_each_trial_error_has_its_outcome(error: TrialError, outcome: TrialOutcome) -> None:
    assert outcome_of(error) is outcome


def test_a_failure_learns_the_worst_that_was_observed() -> None:
    good, bad = OBJECTIVE.score(run(-0.5, -0.9)), OBJECTIVE.score(run(0.3, -0.2, joules=100.0))
    failed = learnable([good, OBJECTIVE.score(None), bad])[1]
    assert failed.value == bad.value
    assert failed.constraints == {FITS: 1.0, COMPLETES: -1.0, SLOS[0]: 0.3, SLOS[1]: -0.2}


violations = st.none() | st.floats(allow_nan=True, allow_infinity=True)
runs = st.none() | st.builds(
    run, violations, violations, joules=st.none() | st.floats(0.0, 1e9), tokens=st.integers(0, 10**6),
    requests=st.integers(0, 5), failed=st.integers(0, 3),
)  # fmt: skip


@given(runs)
def test_feasible_is_what_the_result_itself_says(result: RunResult | None) -> None:
    score = OBJECTIVE.score(result)
    assert score.feasible == (result is not None and result.feasible and len(result.verdicts) == len(SLOS))


@given(st.lists(runs, max_size=6))
def test_learnable_scores_are_finite_ordered_and_keep_feasibility(results: list[RunResult | None]) -> None:
    scores = [OBJECTIVE.score(result) for result in results]
    for before, after in zip(scores, learnable(scores), strict=True):
        assert after.value is not None
        assert math.isfinite(after.value)
        assert list(after.constraints) == list(OBJECTIVE.keys)
        assert all(-1 <= violation <= 1 for violation in after.constraints.values())
        assert after.feasible == before.feasible


def test_an_empty_history_is_learnable() -> None:
    assert learnable([]) == []
    assert learnable([Score(None, {FITS: 1.0})]) == [Score(0.0, {FITS: 1.0})]
