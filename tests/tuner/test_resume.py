"""No measurement is lost: a study killed anywhere resumes, and two owners never work on one study."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from energyopt.core.clock import FakeClock, MonotonicClock
from energyopt.core.config import Deployment
from energyopt.core.errors import CrashError, StoreError
from energyopt.core.leases import MAX_ATTEMPTS
from energyopt.core.results import RunResult
from energyopt.core.slo import Slo
from energyopt.core.study import MeasurePlan, Origin, StudyRecord, StudyState, TrialOutcome, TrialRecord, TrialState
from energyopt.core.study_store import StudyStore
from energyopt.core.units import Seconds
from energyopt.core.workload import Workload
from energyopt.store.database import open_store
from energyopt.store.memory import MemoryStudyStore
from tuner.fake import FakeEvaluator
from tuner.fake_study import FakePowerController, toy_spec
from tuner.lease import Lease, LeaseLostError
from tuner.loop import StudyRunner
from tuner.ports import Evaluator, ProgressSink
from tuner.space import SearchSpace


class Killed(BaseException):
    """The process is gone: nothing after it happens, clean-up included."""


class DyingStore:
    """A store whose process dies at its ``fatal``-th call, before or after that call took effect."""

    def __init__(self, store: StudyStore, fatal: int, *, after: bool) -> None:
        self._store, self._left, self._after = store, fatal, after

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left < 0 or (self._left == 0 and not self._after):
                raise Killed
            answer = method(*args, **kwargs)
            if self._left == 0:
                raise Killed
            return answer

        return call


def steady(clock: FakeClock) -> FakeEvaluator:
    """Without noise a repeated run gives the same, so an interrupted study can be compared with an undisturbed one."""
    return FakeEvaluator(clock, noise=0.0)


SPEC = toy_spec(trials=6, pairs=2)


def work(
    store: StudyStore, study_id: str, clock: FakeClock, owner: str, evaluator: Evaluator | None = None
) -> StudyRecord:
    runner = StudyRunner(store, evaluator or steady(clock), FakePowerController(), clock, owner)
    return runner.run(study_id)


def story(trials: Sequence[TrialRecord]) -> list[tuple[object, ...]]:
    """What must not depend on interruptions."""
    return [(t.number, t.origin, dict(t.params), t.outcome, t.pair) for t in trials]


def undisturbed() -> tuple[list[tuple[object, ...]], StudyRecord]:
    clock = FakeClock()
    store = MemoryStudyStore(clock)
    study = work(store, store.create_study(SPEC, {}).id, clock, "calm")
    return story(store.trials(study.id)), study


CALM_STORY, CALM_STUDY = undisturbed()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=3))
def test_killed_anywhere_it_resumes_to_the_same_end(kills: list[tuple[int, bool]]) -> None:
    clock = FakeClock()
    store = MemoryStudyStore(clock)
    study_id = store.create_study(SPEC, {}).id
    finished: dict[int, TrialRecord] = {}
    for life, (fatal, after) in enumerate(kills):
        dying = cast("StudyStore", DyingStore(store, fatal, after=after))
        with contextlib.suppress(Killed):
            work(dying, study_id, clock, f"life-{life}")
        for number, trial in finished.items():
            assert store.trials(study_id)[number] == trial, "a finished trial changed"
        finished = {t.number: t for t in store.trials(study_id) if t.state is TrialState.DONE}
    # A trial that was running at so many deaths is held for their cause: see the test of poison below.
    assume(all(trial.attempts < MAX_ATTEMPTS for trial in store.trials(study_id)))
    study = work(store, study_id, clock, "last")
    trials = store.trials(study_id)
    assert all(trial in trials for trial in finished.values())
    assert story(trials) == CALM_STORY
    assert study.recommendation == CALM_STUDY.recommendation
    assert study.state is StudyState.SUCCEEDED


def test_every_single_step_of_a_study_survives_a_kill() -> None:
    """Exhaustive over one kill: until the study ends within the calls it is given."""
    for after in (False, True):
        for fatal in range(1, 200):
            clock = FakeClock()
            store = MemoryStudyStore(clock)
            study_id = store.create_study(toy_spec(trials=3, pairs=1), {}).id
            try:
                work(cast("StudyStore", DyingStore(store, fatal, after=after)), study_id, clock, "first")
            except Killed:
                assert work(store, study_id, clock, "second").state is StudyState.SUCCEEDED
                assert len([t for t in store.trials(study_id) if not t.origin.verifies]) == 3
            else:
                break
        assert 40 < fatal < 199


class Interrupting:
    """Raises ``error`` in its ``fatal``-th run, then behaves."""

    def __init__(self, clock: FakeClock, fatal: int, error: BaseException) -> None:
        self._inner, self._fatal, self._error = steady(clock), fatal, error

    def run(
        self, deployment: Deployment, workload: Workload, plan: MeasurePlan, slos: Sequence[Slo], progress: ProgressSink
    ) -> RunResult:
        self._fatal -= 1
        if self._fatal == 0:
            raise self._error
        return self._inner.run(deployment, workload, plan, slos, progress)


@pytest.mark.parametrize("fatal", [1, 3, 8])
def test_an_interrupt_queues_the_trial_gives_the_lease_back_and_the_study_resumes_at_once(fatal: int) -> None:
    clock = FakeClock()
    store = MemoryStudyStore(clock)
    study_id = store.create_study(SPEC, {}).id
    with pytest.raises(KeyboardInterrupt):
        work(store, study_id, clock, "first", Interrupting(clock, fatal, KeyboardInterrupt()))
    study = store.study(study_id)
    assert study.owner is None
    assert study.state in (StudyState.RUNNING, StudyState.VERIFYING)
    assert [t.state for t in store.trials(study_id)][-1] is TrialState.QUEUED
    before = clock.now()
    work(store, study_id, clock, "second")
    assert story(store.trials(study_id)) == CALM_STORY
    assert store.trials(study_id)[fatal - 1].attempts == 2
    assert clock.now() - before < 200


def test_our_own_fault_fails_the_study_with_its_error_and_may_be_mended() -> None:
    clock = FakeClock()
    store = MemoryStudyStore(clock)
    study_id = store.create_study(SPEC, {}).id
    with pytest.raises(ZeroDivisionError):
        work(store, study_id, clock, "first", Interrupting(clock, 3, ZeroDivisionError("seven by nothing")))
    study = store.study(study_id)
    assert (study.state, study.error, study.owner) == (StudyState.FAILED, "seven by nothing", None)
    assert not any(t.state is TrialState.RUNNING for t in store.trials(study_id))
    assert work(store, study_id, clock, "second").state is StudyState.SUCCEEDED
    assert story(store.trials(study_id)) == CALM_STORY


def test_a_configuration_that_takes_its_process_along_three_times_is_a_crash() -> None:
    clock = FakeClock()
    store = MemoryStudyStore(clock)
    study_id = store.create_study(SPEC, {}).id
    work_until_second_trial(store, study_id, clock)
    for life in range(1, MAX_ATTEMPTS):
        clock.advance(60)
        store.requeue_lost(study_id, "")
        store.start_attempt(study_id, 1, f"dead-{life}")
    assert store.trials(study_id)[1].attempts == MAX_ATTEMPTS
    assert work(store, study_id, clock, "last").state is StudyState.SUCCEEDED
    lost = store.trials(study_id)[1]
    assert (lost.outcome, lost.attempts) == (TrialOutcome.CRASHED, MAX_ATTEMPTS)
    assert lost.error is not None
    assert "3 times" in lost.error


def work_until_second_trial(store: MemoryStudyStore, study_id: str, clock: FakeClock) -> None:
    """Leave trial 1 running, as a killed process does."""
    for fatal in range(1, 100):
        with contextlib.suppress(Killed):
            work(cast("StudyStore", DyingStore(store, fatal, after=True)), study_id, clock, f"dead-{fatal}")
        clock.advance(60)
        if [t.state for t in store.trials(study_id)][1:] == [TrialState.RUNNING]:
            return
    pytest.fail("no kill left trial 1 running")


def test_a_finished_study_is_returned_as_it_is() -> None:
    clock = FakeClock()
    store = MemoryStudyStore(clock)
    study_id = store.create_study(SPEC, {}).id
    first = work(store, study_id, clock, "first")
    evaluator = steady(clock)
    assert work(store, study_id, clock, "second", evaluator).recommendation == first.recommendation
    assert evaluator.runs == 0


class Stopping:
    """Someone changes the state of the study while its trial after ``trials`` runs."""

    def __init__(
        self, store: MemoryStudyStore, study_id: str, clock: FakeClock, state: StudyState, trials: int
    ) -> None:
        self._store, self._study_id, self._inner = store, study_id, steady(clock)
        self._state, self._trials = state, trials

    def run(
        self, deployment: Deployment, workload: Workload, plan: MeasurePlan, slos: Sequence[Slo], progress: ProgressSink
    ) -> RunResult:
        if self._inner.runs == self._trials:
            self._store.set_state(self._study_id, self._state)
        return self._inner.run(deployment, workload, plan, slos, progress)


@pytest.mark.parametrize("asked", [StudyState.CANCELLING, StudyState.CANCELLED])
@pytest.mark.parametrize("trials", [1, SPEC.budget.trials])
def test_a_cancelled_study_ends_after_the_trial_that_runs(asked: StudyState, trials: int) -> None:
    """In the search as in the verification."""
    clock = FakeClock()
    store = MemoryStudyStore(clock)
    study_id = store.create_study(SPEC, {}).id
    study = work(store, study_id, clock, "first", Stopping(store, study_id, clock, asked, trials))
    assert (study.state, study.recommendation, study.owner) == (StudyState.CANCELLED, None, None)
    assert [t.state for t in store.trials(study_id)] == [TrialState.DONE] * (trials + 1)


@pytest.mark.parametrize("trials", [1, SPEC.budget.trials])
def test_a_paused_study_goes_on_to_the_same_end(trials: int) -> None:
    clock = FakeClock()
    store = MemoryStudyStore(clock)
    study_id, other = store.create_study(SPEC, {}).id, store.create_study(SPEC, {}).id
    stopper = Stopping(store, study_id, clock, StudyState.PAUSING, trials)
    paused = work(store, study_id, clock, "first", stopper)
    assert (paused.state, paused.owner) == (StudyState.PAUSED, None)
    assert [t.state for t in store.trials(study_id)] == [TrialState.DONE] * (trials + 1)
    assert work(store, study_id, clock, "second").state is work(store, other, clock, "third").state
    assert len(store.trials(study_id)) == len(store.trials(other))


def test_a_living_owner_is_not_disturbed() -> None:
    clock = FakeClock()
    store = MemoryStudyStore(clock)
    study_id = store.create_study(SPEC, {}).id
    store.claim(study_id, "alive", Seconds(500))
    with pytest.raises(StoreError, match="alive"):
        work(store, study_id, clock, "second")
    assert store.trials(study_id) == []
    assert store.study(study_id).owner == "alive"


def test_a_dead_owners_lease_is_waited_for() -> None:
    clock = FakeClock()
    store = MemoryStudyStore(clock)
    study_id = store.create_study(SPEC, {}).id
    store.claim(study_id, "dead", Seconds(20))
    waits: list[float] = []
    with Lease(store, clock, study_id, "second", on_wait=waits.append):
        assert store.study(study_id).owner == "second"
    assert waits == [pytest.approx(20)]
    assert clock.now() == pytest.approx(20.1)


class Stealing:
    """Another process takes the study over while a trial runs (ours slept through its lease)."""

    def __init__(self, store: MemoryStudyStore, study_id: str, clock: FakeClock) -> None:
        self._store, self._study_id, self._clock, self._inner = store, study_id, clock, steady(clock)

    def run(
        self, deployment: Deployment, workload: Workload, plan: MeasurePlan, slos: Sequence[Slo], progress: ProgressSink
    ) -> RunResult:
        self._clock.advance(3600)
        self._store.claim(self._study_id, "thief", Seconds(1000))
        return self._inner.run(deployment, workload, plan, slos, progress)


def test_who_lost_the_lease_writes_nothing_more() -> None:
    clock = FakeClock()
    store = MemoryStudyStore(clock)
    study_id = store.create_study(SPEC, {}).id
    with pytest.raises(LeaseLostError, match="took over"):
        work(store, study_id, clock, "first", Stealing(store, study_id, clock))
    study = store.study(study_id)
    assert (study.owner, study.state) == ("thief", StudyState.RUNNING)
    assert [t.state for t in store.trials(study_id)] == [TrialState.RUNNING]


def test_the_lease_is_renewed_while_a_trial_blocks() -> None:
    """On the real clock: the study stays ours for longer than one time to live."""
    store = MemoryStudyStore()
    study_id = store.create_study(SPEC, {}).id
    renewed = threading.Event()
    claims = 0

    class Counting:
        def __getattr__(self, name: str) -> Any:
            nonlocal claims
            if name == "claim":
                claims += 1
                if claims >= 3:
                    renewed.set()
            return getattr(store, name)

    with Lease(cast("StudyStore", Counting()), MonotonicClock(), study_id, "me", ttl=Seconds(0.3)):
        assert renewed.wait(5)
        assert store.study(study_id).owner == "me"
    assert store.study(study_id).owner is None


def test_a_failed_baseline_survives_a_restart() -> None:
    """The outcome of trial 0 is told to the search again, whatever it was."""
    clock = FakeClock()
    store = MemoryStudyStore(clock)
    study_id = store.create_study(SPEC, {}).id
    params = SearchSpace(SPEC.space, SPEC.baseline).baseline_params
    baseline = store.add_trial(study_id, params, SPEC.baseline, Origin.BASELINE)
    store.start_attempt(study_id, baseline.number, "dead")
    store.finish_trial(study_id, baseline.number, TrialOutcome.CRASHED, error=CrashError("gone").message)
    study = work(store, study_id, clock, "second")
    assert study.recommendation is not None
    assert study.recommendation.trial != 0


def test_the_sql_store_keeps_the_same_promises(tmp_path: Path) -> None:
    """Killed in the search and in the verification, on a database that really is on disk."""
    clock = FakeClock()
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    study_id = open_store(url, clock=clock).create_study(SPEC, {}).id
    for life, fatal in enumerate((30, 60)):
        with pytest.raises(Killed):
            work(
                cast("StudyStore", DyingStore(open_store(url, clock=clock), fatal, after=True)),
                study_id,
                clock,
                str(life),
            )
    study = work(open_store(url, clock=clock), study_id, clock, "last")
    assert story(open_store(url, clock=clock).trials(study_id)) == CALM_STORY
    assert study.recommendation == CALM_STUDY.recommendation
