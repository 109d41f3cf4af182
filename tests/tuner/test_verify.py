"""The ranking never names an infeasible configuration, and the interval is Student's."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energyopt.core.results import EnergyTotal, RunResult, Source
from energyopt.core.study import Origin, TrialOutcome, TrialRecord, TrialState
from energyopt.core.units import Joules, Seconds, Tokens
from tuner.fake_study import toy_deployment
from tuner.objective import Objective
from tuner.verify import gain, interval, order, rank, saving

OBJECTIVE = Objective("tokens_per_joule", ())


def run(tokens_per_joule: float | None, rate: float = 100.0) -> RunResult:
    energy = None
    if tokens_per_joule is not None:
        energy = EnergyTotal(joules=Joules(1000 / tokens_per_joule), error=Joules(0), sources=(Source.COUNTER,))
    return RunResult(
        window=Seconds(1000 / rate),
        requests=1,
        failed_requests=0,
        prompt_tokens=Tokens(1),
        cached_tokens=Tokens(0),
        output_tokens=Tokens(1000),
        energy=energy,
        power_valid=energy is not None,
    )


def trial(
    number: int,
    value: float | None,
    outcome: TrialOutcome = TrialOutcome.FEASIBLE,
    *,
    knob: int | None = None,
    origin: Origin = Origin.SEARCH,
    state: TrialState = TrialState.DONE,
) -> TrialRecord:
    ran = outcome in (TrialOutcome.FEASIBLE, TrialOutcome.INFEASIBLE)
    return TrialRecord(
        number=number,
        origin=origin,
        params={"k": number if knob is None else knob},
        deployment=toy_deployment(),
        state=state,
        outcome=outcome,
        result=run(value) if ran else None,
        created=datetime(2026, 1, 1, tzinfo=UTC),
    )


def test_trap_5_the_best_is_the_best_feasible_whatever_an_infeasible_one_shows() -> None:
    trials = [trial(0, 2.0), trial(1, 9.0, TrialOutcome.INFEASIBLE), trial(2, 3.0), trial(3, None, TrialOutcome.OOM)]
    assert [candidate.trial for candidate in rank(trials, OBJECTIVE)] == [2, 0]


def test_a_configuration_that_ever_missed_is_no_candidate_and_repeats_are_averaged() -> None:
    trials = [
        trial(0, 2.0, knob=1),
        trial(1, 4.0, knob=1),
        trial(2, 9.0, knob=2),
        trial(3, 9.0, TrialOutcome.INFEASIBLE, knob=2),
    ]
    (candidate,) = rank(trials, OBJECTIVE)
    assert candidate.value == pytest.approx(3.0)
    assert candidate.trial == 0


def test_what_was_not_measured_or_not_finished_is_not_ranked() -> None:
    trials = [
        trial(0, None),
        trial(1, 5.0, state=TrialState.RUNNING),
        trial(2, 5.0, origin=Origin.VERIFY_WINNER),
    ]
    assert rank(trials, OBJECTIVE) == []


def test_of_equals_the_first_wins() -> None:
    assert [c.trial for c in rank([trial(4, 2.0), trial(2, 2.0)], OBJECTIVE)] == [2, 4]


@given(st.lists(st.tuples(st.sampled_from(list(TrialOutcome)), st.none() | st.floats(0.01, 1e3), st.integers(0, 3))))
def test_no_infeasible_configuration_is_ever_ranked(rows: list[tuple[TrialOutcome, float | None, int]]) -> None:
    trials = [trial(i, value, outcome, knob=knob) for i, (outcome, value, knob) in enumerate(rows)]
    ranked = rank(trials, OBJECTIVE)
    for candidate in ranked:
        same = [t for t in trials if t.params == candidate.params]
        assert all(t.outcome is TrialOutcome.FEASIBLE for t in same)
    assert [c.value for c in ranked] == sorted((c.value for c in ranked), reverse=True)


def test_pairs_alternate_who_goes_first() -> None:
    w, b = Origin.VERIFY_WINNER, Origin.VERIFY_BASELINE
    assert [order(pair) for pair in range(4)] == [(w, b), (b, w), (w, b), (b, w)]


def test_the_interval_is_students() -> None:
    found = interval([0.1, 0.2, 0.3])
    assert found is not None
    assert found.mean == pytest.approx(0.2)
    # t(0.975, 2) = 4.30265, s = 0.1
    assert found.low == pytest.approx(0.2 - 4.30265 * 0.1 / 3**0.5, abs=1e-5)
    assert found.high == pytest.approx(0.2 + 4.30265 * 0.1 / 3**0.5, abs=1e-5)
    assert not found.positive


def test_one_sample_has_no_interval_and_is_never_certain() -> None:
    found = interval([0.5])
    assert found is not None
    assert (found.mean, found.low, found.high, found.positive) == (0.5, None, None, False)
    assert interval([]) is None


def test_the_saving_is_energy_per_token_not_tokens_per_energy() -> None:
    found = saving([(run(4.0), run(3.0)), (run(2.0), run(1.5))])
    assert found is not None
    assert found.mean == pytest.approx(0.25)
    assert found.positive


def test_without_joules_there_is_no_saving_but_a_gain_of_the_rate() -> None:
    pairs = [(run(None, rate=200.0), run(None, rate=100.0))]
    assert saving(pairs) is None
    assert gain(pairs, OBJECTIVE) is None
    found = gain(pairs, Objective("output_rate", ()))
    assert found is not None
    assert found.mean == pytest.approx(0.5)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=20))
def test_the_interval_encloses_its_mean(samples: list[float]) -> None:
    found = interval(samples)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low - 1e-9 <= found.mean <= found.high + 1e-9
    assert min(samples) - 1e-9 <= found.mean <= max(samples) + 1e-9
