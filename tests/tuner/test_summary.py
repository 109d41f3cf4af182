"""What every screen shows of a study: a front of what kept its SLOs, and what luck would have reached beside it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from energyopt.core.clock import FakeClock
from energyopt.core.study import Origin, StudyRecord, StudyState, TrialOutcome, TrialRecord
from energyopt.store.memory import MemoryStudyStore
from tuner.export.history import best_so_far, history_png
from tuner.fake import FakeEvaluator
from tuner.fake_study import FakePowerController, toy_spec
from tuner.loop import StudyRunner
from tuner.objective import Objective
from tuner.progress import Reporter, StudyProgress
from tuner.references import references
from tuner.space import SearchSpace
from tuner.summary import summarize_study
from tuner.timing import Timing


@pytest.fixture(scope="module")
def finished() -> tuple[StudyRecord, list[TrialRecord]]:
    clock = FakeClock()
    store = MemoryStudyStore(clock)
    study = store.create_study(toy_spec(trials=10, pairs=1), {})
    StudyRunner(store, FakeEvaluator(clock), FakePowerController(), clock, "test").run(study.id)
    return store.study(study.id), store.trials(study.id)


def again(trial: TrialRecord, outcome: TrialOutcome, origin: Origin = Origin.REPEAT) -> TrialRecord:
    return trial.model_copy(
        update={"number": 900, "origin": origin, "outcome": outcome, "ended": datetime(2026, 1, 1, tzinfo=UTC)}
    )


@pytest.mark.parametrize("origin", [Origin.REPEAT, Origin.VERIFY_WINNER])
@pytest.mark.parametrize("outcome", [TrialOutcome.INFEASIBLE, TrialOutcome.CRASHED])
def test_what_missed_when_measured_again_is_on_no_front(
    finished: tuple[StudyRecord, list[TrialRecord]], origin: Origin, outcome: TrialOutcome
) -> None:
    study, trials = finished
    running = study.model_copy(update={"recommendation": None, "state": StudyState.RUNNING})
    searched = [trial for trial in trials if not trial.origin.repeats]
    before = summarize_study(running, searched)
    assert before.best is not None
    leader = next(trial for trial in searched if trial.number == before.best.trial)
    after = summarize_study(running, [*searched, again(leader, outcome, origin)])
    assert leader.number in {row.trial for row in before.front}
    assert leader.number not in {row.trial for row in after.front}
    assert after.best is None or after.best.trial != leader.number
    row = next(row for row in after.rows if row.trial == leader.number)
    assert (row.withdrawn, row.kept, row.word) == (True, False, "withdrawn")
    fine = summarize_study(running, [*searched, again(leader, TrialOutcome.FEASIBLE, origin)])
    assert [row.trial for row in fine.front] == [row.trial for row in before.front]


def test_a_trial_stored_before_its_baseline_is_judged_by_what_the_baseline_cuts(
    finished: tuple[StudyRecord, list[TrialRecord]],
) -> None:
    study, trials = finished
    running = study.model_copy(update={"recommendation": None, "state": StudyState.RUNNING})
    best = summarize_study(running, trials).best
    assert best is not None
    assert best.origin is Origin.SEARCH
    leader = trials[best.trial]
    assert leader.result is not None
    short = leader.model_copy(update={"result": leader.result.model_copy(update={"cut_requests": 30})})
    after = summarize_study(running, [short if trial.number == best.trial else trial for trial in trials])
    row = next(row for row in after.rows if row.trial == best.trial)
    assert (row.outcome, row.feasible, row.on_front) == ("infeasible", False, False)
    assert after.best is None or after.best.trial != best.trial


def test_progress_forgets_a_best_that_missed_when_measured_again(
    finished: tuple[StudyRecord, list[TrialRecord]],
) -> None:
    study, trials = finished
    seen: list[StudyProgress] = []
    objective, clock = Objective(study.spec.maximize, study.spec.slos), FakeClock()
    reporter = Reporter(study.spec, objective, Timing(study.spec.budget, clock, ()), clock, seen.append)
    searched = [trial for trial in trials if not trial.origin.repeats and trial.outcome is TrialOutcome.FEASIBLE]
    for trial in searched:
        reporter.finished(trial)
    ranked = sorted((_value(objective, trial), trial.number) for trial in searched)
    assert reporter.best == ranked[-1][0]
    reporter.finished(again(next(t for t in searched if t.number == ranked[-1][1]), TrialOutcome.INFEASIBLE))
    assert reporter.best == (ranked[-2][0] if len(ranked) > 1 else None)


def _value(objective: Objective, trial: TrialRecord) -> float:
    assert trial.result is not None
    return objective.value(trial.result) or 0.0


def test_luck_finds_less_than_everything_and_no_less_with_more_trials(
    finished: tuple[StudyRecord, list[TrialRecord]],
) -> None:
    study, trials = finished
    space, objective = (
        SearchSpace(study.spec.space, study.spec.baseline),
        Objective("tokens_per_joule", study.spec.slos),
    )
    searched = [trial for trial in trials if not trial.origin.repeats]
    best = max(_value(objective, t) for t in searched if t.outcome is TrialOutcome.FEASIBLE)
    found = references(space, trials, objective)
    assert [one.name for one in found] == ["random", "sobol"]
    for one in found:
        assert len(one.curve) == len(searched)
        assert list(one.curve) == sorted(one.curve)
        assert 0 < one.reached <= best * 1.2
    assert references(space, trials[:3], objective) == []


def test_random_search_of_all_points_finds_the_best_for_sure() -> None:
    """With as many draws as points nothing is left to luck, and the formula has to say so."""
    clock = FakeClock()
    store = MemoryStudyStore(clock)
    study = store.create_study(toy_spec(trials=50, pairs=0), {})
    StudyRunner(store, FakeEvaluator(clock), FakePowerController(), clock, "test").run(study.id)
    trials = store.trials(study.id)
    objective = Objective("tokens_per_joule", study.spec.slos)
    kept = [t for t in trials if t.outcome is TrialOutcome.FEASIBLE and not t.origin.repeats]
    for one in references(SearchSpace(study.spec.space, study.spec.baseline), trials, objective):
        assert one.reached == pytest.approx(max(_value(objective, t) for t in kept))
    leader = max(kept, key=lambda trial: _value(objective, trial))
    assert leader.result is not None
    missed = leader.result.model_copy(update={"failed_requests": 1})
    later = again(leader, TrialOutcome.INFEASIBLE).model_copy(update={"result": missed})
    next_best = max(_value(objective, t) for t in kept if t.deployment != leader.deployment)
    for one in references(SearchSpace(study.spec.space, study.spec.baseline), [*trials, later], objective):
        assert one.reached == pytest.approx(next_best), "luck does not find what was withdrawn"


def test_the_history_is_a_picture_and_its_best_never_falls(finished: tuple[StudyRecord, list[TrialRecord]]) -> None:
    summary = summarize_study(*finished)
    line: Sequence[float | None] = best_so_far(summary.rows, summary.objective)
    known = [value for value in line if value is not None]
    assert known == sorted(known)
    assert history_png(summary).startswith(b"\x89PNG")
