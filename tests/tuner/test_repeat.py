"""What is measured again: doubtful leaders within their share, the baseline every so often, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from energyopt.core.results import EnergyTotal, RunResult, Source, VerdictRecord
from energyopt.core.study import Origin, TrialOutcome, TrialRecord, TrialState
from energyopt.core.units import Joules, Seconds, Tokens
from tuner.fake_study import toy_deployment
from tuner.objective import Objective
from tuner.repeat import MOST, REFERENCE_EVERY, Repeats

OBJECTIVE = Objective("tokens_per_joule", ["ttft:p90<500ms"])
BASE = {"k": 0}


def trial(
    number: int, knob: int, value: float, *, samples: int = 100, over: int = 0, origin: Origin = Origin.SEARCH
) -> TrialRecord:
    verdict = VerdictRecord(
        slo="ttft:p90<500ms", state="", estimate=0.4, bound=None, violation=-0.2, samples=samples, confidence=0.95,
        over=over,
    )  # fmt: skip
    result = RunResult(
        window=Seconds(10.0),
        requests=9,
        failed_requests=0,
        prompt_tokens=Tokens(1),
        cached_tokens=Tokens(0),
        output_tokens=Tokens(1000),
        verdicts=(verdict,),
        energy=EnergyTotal(joules=Joules(1000 / value), error=Joules(0), sources=(Source.COUNTER,)),
        power_valid=True,
    )
    return TrialRecord(
        number=number,
        origin=origin,
        params={"k": knob},
        deployment=toy_deployment(),
        state=TrialState.DONE,
        outcome=TrialOutcome.FEASIBLE,
        result=result,
        created=datetime(2026, 1, 1, tzinfo=UTC),
    )


def again(trials: Sequence[TrialRecord], budget: int = 20) -> object:
    return Repeats(OBJECTIVE, budget).next(trials, BASE)


def test_a_doubtful_leader_is_measured_again_until_it_is_sure() -> None:
    trials = [trial(0, 0, 1.0), trial(1, 1, 3.0, samples=10), trial(2, 2, 2.0)]
    assert again(trials) == {"k": 1}
    assert again([*trials, trial(3, 1, 3.0, samples=20, origin=Origin.REPEAT)]) is None


def test_a_sure_leader_and_a_doubtful_follower_are_left_alone() -> None:
    assert again([trial(0, 0, 1.0), trial(1, 1, 3.0), trial(2, 2, 2.0, samples=10)]) is None


def test_a_leader_that_stays_doubtful_makes_way() -> None:
    runs = [trial(place, 1, 3.0, over=8, origin=Origin.REPEAT if place > 1 else Origin.SEARCH) for place in range(1, 4)]
    assert len(runs) == MOST
    assert again([trial(0, 0, 1.0), *runs, trial(4, 2, 2.0, samples=10)]) == {"k": 2}


def test_repetitions_take_a_share_of_the_budget_and_no_more() -> None:
    doubtful = [trial(0, 0, 1.0), trial(1, 1, 3.0, samples=5), trial(2, 1, 3.0, samples=5, origin=Origin.REPEAT)]
    assert again(doubtful, budget=10) == {"k": 1}
    assert again(doubtful, budget=9) is None
    assert again(doubtful[:2], budget=4) is None


def test_the_baseline_comes_back_to_show_drift() -> None:
    trials = [trial(0, 0, 1.0, origin=Origin.BASELINE), *(trial(n, n, 2.0) for n in range(1, 1 + REFERENCE_EVERY))]
    assert again(trials[:-1]) is None
    assert again(trials) == BASE
    assert again([*trials, trial(99, 0, 1.0, origin=Origin.REPEAT)]) is None
