"""Submitted studies: made once, changed only as they were seen, taken by workers when nobody works on them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from energyopt.core.clock import FakeClock
from energyopt.core.errors import NotFoundError, UsageError
from energyopt.core.study import Budget, StudySpec, StudyState
from energyopt.core.units import Seconds
from energyopt.store.jobs import WORKABLE, ChangedError, NotEndedError, Repeat, RepeatedKeyError
from energyopt.store.service_store import ServiceStore, open_service_store


@pytest.fixture
def service(url: str, clock: FakeClock) -> Iterator[ServiceStore]:
    store = open_service_store(url, clock=clock)
    yield store
    store.close()


def test_a_study_comes_with_its_job(service: ServiceStore, spec: StudySpec) -> None:
    made, repeated = service.jobs.submit(spec, {"cpu": "x"}, labels={"team": "a\0"}, tenant="acme", by="k1")
    assert not repeated
    assert service.studies.study(made).spec == spec
    job = service.jobs.job(made)
    assert (job.tenant, job.submitted_by, job.revision, job.progress) == ("acme", "k1", 1, None)
    assert job.labels == {"team": "a\N{REPLACEMENT CHARACTER}"}


def test_a_repeated_request_makes_nothing_new(service: ServiceStore, spec: StudySpec) -> None:
    first = Repeat("k1", "abc", "digest")
    made, _ = service.jobs.submit(spec, {}, labels={}, repeat=first)
    assert service.jobs.submit(spec, {}, labels={}, repeat=first) == (made, True)
    assert service.jobs.repeated(first) == made
    with pytest.raises(RepeatedKeyError, match="another request"):
        service.jobs.submit(spec, {}, labels={}, repeat=Repeat("k1", "abc", "other"))
    other, repeated = service.jobs.submit(spec, {}, labels={}, repeat=Repeat("k2", "abc", "other"))
    assert (other != made, repeated) == (True, False)
    assert len(service.studies.studies()) == 2


def test_of_many_requests_with_one_key_one_makes_a_study(service: ServiceStore, spec: StudySpec) -> None:
    made: list[str] = []
    repeat = Repeat("k", "abc", "digest")

    def submit() -> None:
        made.append(service.jobs.submit(spec, {}, labels={"a": "b"}, repeat=repeat)[0])

    threads = [threading.Thread(target=submit) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), len(set(made)), len(service.studies.studies())) == (6, 1, 1)


def test_a_change_needs_the_revision_that_was_seen(service: ServiceStore, spec: StudySpec) -> None:
    made, _ = service.jobs.submit(spec, {}, labels={"a": "1", "b": "2"})
    changed = service.jobs.change(made, 1, budget=Budget(trials=77), labels={"a": "3"})
    assert (changed.revision, changed.labels) == (2, {"a": "3"})
    assert service.studies.study(made).spec == spec.model_copy(update={"budget": Budget(trials=77)})
    with pytest.raises(ChangedError, match="revision 2"):
        service.jobs.change(made, 1, budget=None, labels={})
    assert service.jobs.change(made, 2, budget=None, labels=None).labels == {"a": "3"}
    plain = service.studies.create_study(spec, {}).id
    with pytest.raises(UsageError, match="not submitted"):
        service.jobs.change(plain, 0, budget=None, labels={})
    with pytest.raises(NotFoundError):
        service.jobs.change("none", 0, budget=None, labels={})


def test_workers_see_what_waits_and_nothing_of_the_command_line(
    service: ServiceStore, spec: StudySpec, clock: FakeClock
) -> None:
    first, second = (service.jobs.submit(spec, {}, labels={})[0] for _ in range(2))
    service.studies.create_study(spec, {})
    assert service.jobs.waiting() == [first, second]
    service.studies.claim(first, "worker", Seconds(30.0))
    assert service.jobs.waiting() == [second]
    clock.sleep(Seconds(31.0))
    assert service.jobs.waiting() == [first, second], "a killed worker's study waits again"
    for state in StudyState:
        service.studies.set_state(second, state)
        assert (second in service.jobs.waiting()) is (state in WORKABLE)
    assert {StudyState.PAUSED, *(s for s in StudyState if s.terminal)} == set(StudyState) - set(WORKABLE)


def test_only_what_has_ended_is_removed_and_then_with_everything(service: ServiceStore, spec: StudySpec) -> None:
    made, _ = service.jobs.submit(spec, {}, labels={"a": "b"})
    with pytest.raises(NotEndedError, match="cancel it"):
        service.jobs.remove(made)
    service.studies.change_state(made, StudyState.CANCELLED, when=[StudyState.QUEUED])
    service.jobs.remove(made)
    with pytest.raises(NotFoundError):
        service.studies.study(made)
    assert service.jobs.job(made).revision == 0
    assert service.jobs.job(made).labels == {}
    with pytest.raises(NotFoundError):
        service.jobs.remove(made)


def test_progress_is_the_last_word(service: ServiceStore, spec: StudySpec) -> None:
    made, _ = service.jobs.submit(spec, {}, labels={})
    for done in (1, 2):
        service.jobs.note_progress(made, {"done": done, "eta": None})
    assert service.jobs.job(made).progress == {"done": 2, "eta": None}
    service.jobs.note_progress("none", {})


def test_the_tail_reads_every_study_on_from_its_own_mark(service: ServiceStore, spec: StudySpec) -> None:
    one, two = (service.jobs.submit(spec, {}, labels={})[0] for _ in range(2))
    events = [service.studies.add_event(study, "x", {"n": n}) for n, study in enumerate((one, two, one, two))]
    service.jobs.note_progress(one, {"done": 1})
    found, standing = service.tail.after({one: events[0].id, two: 0, "gone": 0})
    assert found == {one: [events[2]], two: [events[1], events[3]]}
    assert (standing[one].state, standing[one].progress) == (StudyState.QUEUED, '{"done": 1}')
    assert (standing[two].progress, set(standing)) == (None, {one, two})
