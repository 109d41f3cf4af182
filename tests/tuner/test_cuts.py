"""What a configuration cuts beyond the baseline has failed; what both cut has not."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energyopt.core.config import Deployment, EngineConfig, PoolConfig
from energyopt.core.results import RunResult
from energyopt.core.study import Origin, TrialOutcome, TrialRecord, TrialState
from energyopt.core.units import Seconds, Tokens
from tuner.cuts import judged, judged_by_baseline
from tuner.objective import Objective

OBJECTIVE = Objective("output_rate", ())
DEPLOYMENT = Deployment(decode=PoolConfig(engine=EngineConfig(model="fake")))


def run(requests: int, cut: int) -> RunResult:
    return RunResult(
        window=Seconds(10.0),
        requests=requests,
        failed_requests=0,
        prompt_tokens=Tokens(10),
        cached_tokens=Tokens(0),
        output_tokens=Tokens(1000),
        cut_requests=cut,
    )


def trial(number: int, result: RunResult | None) -> TrialRecord:
    origin = Origin.SEARCH if number else Origin.BASELINE
    return TrialRecord(
        number=number,
        origin=origin,
        params={"x": number},
        deployment=DEPLOYMENT,
        state=TrialState.DONE,
        result=result,
        created=datetime(2026, 1, 1, tzinfo=UTC),
    )


def test_a_context_that_serves_first_turns_only_wins_nothing() -> None:
    baseline, candidate = trial(0, run(100, 0)), trial(1, run(90, 30))
    assert candidate.result is not None
    assert OBJECTIVE.score(candidate.result).feasible, "without the baseline nobody can tell"
    judged = judged_by_baseline(candidate.result, candidate, [baseline, candidate])
    assert (judged.requests, judged.failed_requests, judged.cut_requests) == (120, 30, 0)
    assert not judged.feasible
    assert not OBJECTIVE.score(judged).feasible
    assert OBJECTIVE.score(judged).constraints["completes"] == 0.25


def test_what_the_models_own_context_cuts_is_nobodys_fault() -> None:
    baseline, candidate = trial(0, run(100, 25)), trial(1, run(208, 52))
    for one in (baseline, candidate):
        assert one.result is not None
        assert judged_by_baseline(one.result, one, [baseline, candidate]) == one.result


def test_far_more_than_the_baseline_cuts_has_failed() -> None:
    baseline, candidate = trial(0, run(100, 25)), trial(1, run(40, 80))
    assert candidate.result is not None
    assert not judged_by_baseline(candidate.result, candidate, [baseline, candidate]).feasible


@pytest.mark.parametrize("known", [[], [trial(0, None)]])
def test_without_a_baseline_that_ran_every_cut_counts(known: list[TrialRecord]) -> None:
    candidate = trial(1, run(90, 1))
    assert candidate.result is not None
    assert judged_by_baseline(candidate.result, candidate, known).failed_requests == 1


def test_nobody_is_judged_before_the_baseline_has_ended() -> None:
    under_way = trial(0, None).model_copy(update={"state": TrialState.RUNNING})
    first = trial(1, run(90, 30)).model_copy(update={"outcome": TrialOutcome.FEASIBLE})
    assert judged(first, [under_way, first]) == first
    then = judged(first, [trial(0, run(100, 0)), first])
    assert then.outcome is TrialOutcome.INFEASIBLE
    assert then.result is not None
    assert then.result.failed_requests == 30


@given(st.integers(0, 400), st.integers(0, 400), st.integers(0, 400), st.integers(0, 400))
def test_judged_twice_is_judged_once_and_no_request_is_lost(served: int, cut: int, theirs: int, lost: int) -> None:
    trials = [trial(0, run(theirs, lost)), candidate := trial(1, result := run(served, cut))]
    once = judged_by_baseline(result, candidate, trials)
    assert judged_by_baseline(once, candidate.model_copy(update={"result": once}), trials) == once
    assert once.requests + once.cut_requests == served + cut
    assert lost or once.failed_requests == cut
