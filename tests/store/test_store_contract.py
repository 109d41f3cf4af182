"""What every StudyStore does, whatever it keeps its studies in."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, timedelta

import pytest

from energyopt.core.clock import FakeClock
from energyopt.core.config import Deployment
from energyopt.core.errors import NotFoundError, StoreError
from energyopt.core.results import RunResult
from energyopt.core.study import (
    Artifact,
    Origin,
    Recommendation,
    StudySpec,
    StudyState,
    TrialOutcome,
    TrialState,
    Value,
)
from energyopt.core.study_store import StudyStore
from energyopt.core.units import Seconds

MINUTE = Seconds(60.0)
ARTIFACT = Artifact(name="report.html", path="/tmp/report.html", media_type="text/html", sha256="00", bytes=2**40)


def test_a_study_is_kept_as_it_was_given(store: StudyStore, spec: StudySpec, clock: FakeClock) -> None:
    made = store.create_study(spec, {"cpu": "x", "memory": "y"})
    assert made == store.study(made.id)
    assert made.spec == spec
    assert made.spec.space.digest() == spec.space.digest()
    assert made.machine == {"cpu": "x", "memory": "y"}
    assert (made.state, made.owner, made.lease_until, made.recommendation) == (StudyState.QUEUED, None, None, None)
    assert made.created == made.updated == clock.utc()
    assert store.study(made.id).created.tzinfo is UTC


def test_a_unique_beginning_of_the_id_is_enough(store: StudyStore, spec: StudySpec) -> None:
    ids = [store.create_study(spec, {}).id for _ in range(17)]  # 17 hexadecimal ids: two share their first letter
    for one in ids:
        shortest = next(one[:n] for n in range(1, 13) if sum(other.startswith(one[:n]) for other in ids) == 1)
        assert store.study(shortest).id == one
        assert store.study(one).id == one
    shared = next(letter for letter in "0123456789abcdef" if sum(one.startswith(letter) for one in ids) > 1)
    with pytest.raises(NotFoundError, match=rf"'{shared}' is the beginning of several studies"):
        store.study(shared)


@pytest.mark.parametrize("text", ["", "%", "_", "\0", "\ud800", "nothing", "latest "])
def test_what_names_no_study_is_not_found(store: StudyStore, study: str, text: str) -> None:
    with pytest.raises(NotFoundError, match="no study"):
        store.study(text)


def test_case_matters_in_an_id(store: StudyStore, spec: StudySpec) -> None:
    ids = (store.create_study(spec, {}).id for _ in itertools.count())
    one = next(candidate for candidate in ids if candidate.upper() != candidate)
    with pytest.raises(NotFoundError):
        store.study(one.upper())


def test_latest_is_the_newest_even_when_the_clock_stood_still(store: StudyStore, spec: StudySpec) -> None:
    with pytest.raises(NotFoundError, match="no latest study"):
        store.study("latest")
    ids = [store.create_study(spec, {}).id for _ in range(4)]
    assert store.study("latest").id == ids[-1]
    assert [study.id for study in store.studies()] == ids[::-1]
    assert [study.id for study in store.studies(limit=2)] == ids[:1:-1]
    assert store.studies(limit=0) == []


def test_only_one_owner_at_a_time(store: StudyStore, study: str, clock: FakeClock) -> None:
    store.claim(study, "a", MINUTE)
    held = store.study(study)
    assert (held.owner, held.lease_until) == ("a", clock.utc() + timedelta(seconds=60))
    with pytest.raises(StoreError, match="by a until"):
        store.claim(study, "b", MINUTE)
    clock.advance(59)
    store.claim(study, "a", MINUTE)  # a heartbeat
    clock.advance(59.9)
    with pytest.raises(StoreError, match="by a until"):
        store.claim(study, "b", MINUTE)
    clock.advance(0.1)
    store.claim(study, "b", MINUTE)
    assert store.study(study).owner == "b"
    with pytest.raises(StoreError, match="by b until"):
        store.claim(study, "a", MINUTE)


def test_a_lease_is_given_back_only_by_its_holder(store: StudyStore, study: str) -> None:
    store.claim(study, "a", MINUTE)
    store.release(study, "b")
    assert store.study(study).owner == "a"
    store.release(study, "a")
    released = store.study(study)
    assert (released.owner, released.lease_until) == (None, None)
    store.claim(study, "b", MINUTE)


def test_a_state_comes_with_its_error_and_goes_without(store: StudyStore, study: str, clock: FakeClock) -> None:
    clock.advance(5)
    store.set_state(study, StudyState.FAILED, error="the disk is full")
    failed = store.study(study)
    assert (failed.state, failed.error, failed.updated) == (StudyState.FAILED, "the disk is full", clock.utc())
    store.set_state(study, StudyState.RUNNING)
    assert store.study(study).error is None


def test_a_state_changes_only_from_where_it_may(store: StudyStore, study: str, clock: FakeClock) -> None:
    assert not store.change_state(study, StudyState.PAUSED, when=[StudyState.RUNNING, StudyState.FAILED])
    assert (store.study(study).state, store.events(study)) == (StudyState.QUEUED, [])
    clock.sleep(MINUTE)
    assert store.change_state(study, StudyState.FAILED, when=[StudyState.QUEUED], error="it broke")
    found, (event,) = store.study(study), store.events(study)
    assert (found.state, found.error, found.updated) == (StudyState.FAILED, "it broke", clock.utc())
    assert (event.kind, event.data) == ("state", {"state": "failed", "error": "it broke"})


def test_a_recommendation_ends_the_study(store: StudyStore, study: str) -> None:
    found = Recommendation(trial=4, verified=True, pairs=3, saving=0.1, saving_low=-math.inf, saving_high=0.2, note="é")
    store.recommend(study, found)
    assert store.study(study).recommendation == found
    assert store.study(study).state is StudyState.SUCCEEDED


def test_trials_are_numbered_from_the_baseline(store: StudyStore, study: str, deployment: Deployment) -> None:
    params: Mapping[str, Value] = {"a": 1, "b": 1.0, "c": True, "d": None, "e": "1", "f": math.inf, "g": -0.0}
    first = store.add_trial(study, params, deployment, Origin.BASELINE)
    second = store.add_trial(study, {}, deployment, Origin.VERIFY_WINNER, pair=2)
    assert [first, second] == store.trials(study)
    assert (first.number, second.number, second.pair, second.origin) == (0, 1, 2, Origin.VERIFY_WINNER)
    assert first.deployment == deployment
    kept = store.trials(study)[0].params
    assert repr(dict(kept)) == repr(dict(params))  # 1, 1.0 and True are equal; their repr is not
    assert (first.state, first.attempts, first.outcome, first.ended) == (TrialState.QUEUED, 0, None, None)


def test_studies_number_their_trials_on_their_own(store: StudyStore, spec: StudySpec, deployment: Deployment) -> None:
    one, other = store.create_study(spec, {}).id, store.create_study(spec, {}).id
    for study in (one, other, one):
        store.add_trial(study, {}, deployment, Origin.SEARCH)
    assert [trial.number for trial in store.trials(one)] == [0, 1]
    assert [trial.number for trial in store.trials(other)] == [0]


def test_a_trial_runs_and_ends_with_its_result(
    store: StudyStore, study: str, deployment: Deployment, result: RunResult, clock: FakeClock
) -> None:
    store.add_trial(study, {}, deployment, Origin.BASELINE)
    store.start_attempt(study, 0, "a")
    running = store.trials(study)[0]
    assert (running.state, running.attempts, running.ended) == (TrialState.RUNNING, 1, None)
    clock.advance(2.5)
    done = store.finish_trial(study, 0, TrialOutcome.INFEASIBLE, result=result)
    assert [done] == store.trials(study)
    assert (done.state, done.outcome, done.ended) == (TrialState.DONE, TrialOutcome.INFEASIBLE, clock.utc())
    assert done.result == result
    assert done.result.latencies["ttft"].p99 == math.inf
    assert done.result.tokens_per_joule == result.tokens_per_joule == pytest.approx(5)


def test_a_failed_trial_keeps_its_reason(store: StudyStore, study: str, deployment: Deployment) -> None:
    store.add_trial(study, {}, deployment, Origin.SEARCH)
    store.start_attempt(study, 0, "a")
    done = store.finish_trial(study, 0, TrialOutcome.OOM, error="12 GiB wanted, 8 GiB free")
    assert (done.result, done.error) == (None, "12 GiB wanted, 8 GiB free")


def test_a_trial_is_not_started_or_finished_twice(store: StudyStore, study: str, deployment: Deployment) -> None:
    store.add_trial(study, {}, deployment, Origin.SEARCH)
    with pytest.raises(StoreError, match="is queued, not running"):
        store.finish_trial(study, 0, TrialOutcome.FEASIBLE)
    store.start_attempt(study, 0, "a")
    with pytest.raises(StoreError, match="is running, not queued"):
        store.start_attempt(study, 0, "b")
    store.finish_trial(study, 0, TrialOutcome.FEASIBLE)
    for late in (lambda: store.finish_trial(study, 0, TrialOutcome.OOM), lambda: store.start_attempt(study, 0, "a")):
        with pytest.raises(StoreError, match="is done, not"):
            late()
    assert store.trials(study)[0].outcome is TrialOutcome.FEASIBLE


def test_a_refused_change_changes_nothing(
    store: StudyStore, study: str, deployment: Deployment, clock: FakeClock
) -> None:
    store.add_trial(study, {}, deployment, Origin.SEARCH)
    before = store.study(study), store.trials(study)
    clock.advance(1)
    with pytest.raises(StoreError):
        store.finish_trial(study, 0, TrialOutcome.FEASIBLE)
    assert (store.study(study), store.trials(study)) == before


def test_lost_attempts_are_run_again(store: StudyStore, study: str, deployment: Deployment) -> None:
    for _ in range(4):
        store.add_trial(study, {}, deployment, Origin.SEARCH)
    for number, owner in ((0, "dead"), (1, "me"), (2, "dead")):
        store.start_attempt(study, number, owner)
    store.finish_trial(study, 2, TrialOutcome.FEASIBLE)
    assert store.requeue_lost(study, "me") == [0]
    assert store.requeue_lost(study, "me") == []
    states = [(trial.state, trial.attempts) for trial in store.trials(study)]
    queued, running, done = TrialState.QUEUED, TrialState.RUNNING, TrialState.DONE
    assert states == [(queued, 1), (running, 1), (done, 1), (queued, 0)]
    store.start_attempt(study, 0, "me")
    assert store.trials(study)[0].attempts == 2
    assert store.requeue_lost(study, "me") == []


def test_events_are_read_on_from_the_last_one_seen(store: StudyStore, spec: StudySpec, clock: FakeClock) -> None:
    one, other = store.create_study(spec, {}).id, store.create_study(spec, {}).id
    made = []
    for number in range(5):
        clock.advance(1)
        made.append(store.add_event(one, "trial", {"number": number, "best": math.inf, "word": "Infinity"}))
        store.add_event(other, "other", {})
    assert store.events(one) == made
    assert [event.at for event in made] == sorted({event.at for event in made})
    ids = [event.id for event in made]
    assert ids == sorted(set(ids))
    assert store.events(one, after=ids[1], limit=2) == made[2:4]
    assert store.events(one, after=ids[-1]) == []
    assert store.events(one, after=10**30) == []
    assert store.events(one, after=-(10**30), limit=10**30) == made
    assert store.events(one, limit=-1) == []


def test_an_artifact_replaces_its_namesake(store: StudyStore, study: str) -> None:
    store.add_artifact(study, ARTIFACT)
    other = ARTIFACT.model_copy(update={"name": "plot.png"})
    store.add_artifact(study, other)
    newer = ARTIFACT.model_copy(update={"sha256": "ff"})
    store.add_artifact(study, newer)
    assert list(store.artifacts(study)) == [other, newer]


def test_text_that_no_database_holds_becomes_readable(store: StudyStore, study: str, deployment: Deployment) -> None:
    dirty, clean = "a\0b\udcffc", "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c"
    store.add_trial(study, {dirty: dirty}, deployment, Origin.SEARCH)
    store.start_attempt(study, 0, dirty)
    assert store.requeue_lost(study, dirty) == []
    assert store.finish_trial(study, 0, TrialOutcome.CRASHED, error=dirty).error == clean
    assert store.trials(study)[0].params == {clean: clean}
    event = store.add_event(study, dirty, {"x": dirty})
    assert (event.kind, event.data) == (clean, {"x": clean})
    store.set_state(study, StudyState.FAILED, error=dirty)
    store.claim(study, dirty, MINUTE)
    assert (store.study(study).error, store.study(study).owner) == (clean, clean)
    store.release(study, dirty)
    assert store.study(study).owner is None
    machine = store.create_study(store.study(study).spec, {dirty: dirty}).machine
    assert machine == {clean: clean}


def test_what_is_returned_is_not_what_is_kept(store: StudyStore, study: str, deployment: Deployment) -> None:
    params: dict[str, Value] = {"a": 1}
    made = store.add_trial(study, params, deployment, Origin.SEARCH)
    params["a"] = 2
    for copy in (made, store.trials(study)[0]):
        assert isinstance(copy.params, dict)
        copy.params["a"] = 3
    assert store.trials(study)[0].params == {"a": 1}


EVERYTHING: dict[str, Callable[[StudyStore, str, Deployment], object]] = {
    "study": lambda store, study, deployment: store.study(study),
    "claim": lambda store, study, deployment: store.claim(study, "a", MINUTE),
    "release": lambda store, study, deployment: store.release(study, "a"),
    "set_state": lambda store, study, deployment: store.set_state(study, StudyState.RUNNING),
    "change_state": lambda store, study, deployment: store.change_state(
        study, StudyState.FAILED, when=list(StudyState)
    ),
    "recommend": lambda store, study, deployment: store.recommend(
        study, Recommendation(trial=0, verified=False, pairs=0)
    ),
    "add_trial": lambda store, study, deployment: store.add_trial(study, {}, deployment, Origin.SEARCH),
    "start_attempt": lambda store, study, deployment: store.start_attempt(study, 0, "a"),
    "finish_trial": lambda store, study, deployment: store.finish_trial(study, 0, TrialOutcome.OOM),
    "requeue_lost": lambda store, study, deployment: store.requeue_lost(study, "a"),
    "trials": lambda store, study, deployment: store.trials(study),
    "add_event": lambda store, study, deployment: store.add_event(study, "x", {}),
    "events": lambda store, study, deployment: store.events(study),
    "add_artifact": lambda store, study, deployment: store.add_artifact(study, ARTIFACT),
    "artifacts": lambda store, study, deployment: store.artifacts(study),
}


def test_an_unknown_study_is_not_found_by_any_method(store: StudyStore, study: str, deployment: Deployment) -> None:
    for unknown, (name, call) in itertools.product(("no-such-study", "\0", "\ud800"), EVERYTHING.items()):
        with pytest.raises(NotFoundError, match="no study"):
            call(store, unknown, deployment)
        assert store.events(study) == [], name


@pytest.mark.parametrize("number", [-1, 1, 2**31, 10**30])
def test_an_unknown_trial_is_not_found(store: StudyStore, study: str, deployment: Deployment, number: int) -> None:
    store.add_trial(study, {}, deployment, Origin.SEARCH)
    with pytest.raises(NotFoundError, match=f"no trial {number}"):
        store.start_attempt(study, number, "a")
    with pytest.raises(NotFoundError, match=f"no trial {number}"):
        store.finish_trial(study, number, TrialOutcome.OOM)


def _together(count: int, work: Callable[[int], object]) -> list[object]:
    """What ``count`` threads that start at once return, or the StoreError they raise."""
    barrier, found = threading.Barrier(count), [None] * count

    def one(index: int) -> None:
        barrier.wait(10)
        try:
            found[index] = work(index)  # type: ignore[call-overload]
        except StoreError as error:
            found[index] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=one, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return list(found)


def test_threads_share_a_store(store: StudyStore, study: str, deployment: Deployment) -> None:
    def work(index: int) -> list[int]:
        numbers = []
        for _ in range(5):
            numbers.append(store.add_trial(study, {"thread": index}, deployment, Origin.SEARCH).number)
            store.add_event(study, "added", {"thread": index})
        return numbers

    numbers = [number for found in _together(4, work) if isinstance(found, list) for number in found]
    assert sorted(numbers) == list(range(20))
    assert [trial.number for trial in store.trials(study)] == list(range(20))
    assert len(store.events(study)) == 20


def test_of_many_threads_one_gets_the_study_and_one_the_trial(
    store: StudyStore, study: str, deployment: Deployment
) -> None:
    store.add_trial(study, {}, deployment, Origin.SEARCH)
    claims = _together(6, lambda index: store.claim(study, f"t{index}", MINUTE))
    winners = [index for index, found in enumerate(claims) if found is None]
    assert [f"t{index}" for index in winners] == [store.study(study).owner]
    starts = _together(6, lambda index: store.start_attempt(study, 0, f"t{index}"))
    assert sum(found is None for found in starts) == 1
    assert store.trials(study)[0].attempts == 1
