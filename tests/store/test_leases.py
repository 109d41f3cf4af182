"""Leases: whose trial it is, of which machine, and that nothing counts twice. What both databases do alike."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from energyopt.core.clock import FakeClock
from energyopt.core.errors import ConfigError, HeldError
from energyopt.core.leases import (
    CPU,
    HEARD,
    MAX_ATTEMPTS,
    MEASURED_ON,
    TTL,
    DevicesTakenError,
    LeaseGoneError,
    LeaseRecord,
    WorkerFacts,
)
from energyopt.core.results import RunResult
from energyopt.core.slo import Slo
from energyopt.core.study import Origin, StudyState, TrialOutcome, TrialRecord, TrialState
from energyopt.core.units import Seconds
from energyopt.store.service_store import ServiceStore, open_service_store
from tuner.fake import FakeEvaluator
from tuner.fake_study import toy_spec
from tuner.space import SearchSpace

DAY = 86_400.0


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty") / "e.db"
    open_service_store(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def service(empty: Path, tmp_path: Path, clock: FakeClock) -> Iterator[ServiceStore]:
    shutil.copyfile(empty, tmp_path / "e.db")
    opened = open_service_store(f"sqlite:///{tmp_path}/e.db", clock=clock)
    yield opened
    opened.close()


def worker(name: str, hardware: str = "toy", host: str = "h", devices: tuple[str, ...] | None = None) -> WorkerFacts:
    return WorkerFacts(id=name, host=host, hardware=hardware, devices=devices or (f"GPU-{name}",))


def add(service: ServiceStore, study: str, origin: Origin = Origin.SEARCH, pair: int | None = None) -> int:
    """A queued trial of the baseline's configuration."""
    spec = service.studies.study(study).spec
    params = SearchSpace(spec.space, spec.baseline).baseline_params
    return service.studies.add_trial(study, params, spec.baseline, origin, pair).number


@pytest.fixture
def study(service: ServiceStore) -> str:
    """One with a queued baseline, held by ``leader``, who has not opened it yet."""
    made = service.jobs.submit(toy_spec(), {"cpu": "where it was planned"}, labels={})[0]
    service.studies.claim(made, "leader", Seconds(10 * DAY))
    service.studies.set_state(made, StudyState.RUNNING)
    add(service, made, Origin.BASELINE)
    return made


@pytest.fixture
def led(service: ServiceStore, study: str) -> str:
    service.leases.lead(study, "leader")
    return study


@pytest.fixture
def result(clock: FakeClock) -> RunResult:
    spec = toy_spec()
    slos = [Slo.parse(slo) for slo in spec.slos]
    return FakeEvaluator(FakeClock()).run(spec.baseline, spec.workload, spec.plan, slos, lambda progress: None)


def take(service: ServiceStore, facts: WorkerFacts, tenant: str | None = None) -> LeaseRecord:
    found = service.leases.acquire(facts, TTL, tenant=tenant)
    assert found is not None
    return found


def trial(service: ServiceStore, study: str, number: int = 0) -> TrialRecord:
    return service.studies.trials(study)[number]


def test_a_leader_that_compares_settles_the_kind_of_machine(service: ServiceStore, study: str) -> None:
    """Else a quicker worker of another kind would, and the comparison could never begin."""
    service.leases.lead(study, "leader", verifier=worker("leader"))
    assert service.leases.acquire(worker("quick", hardware="other"), TTL) is None
    assert take(service, worker("leader")).number == 0


def test_who_does_not_hold_a_study_cannot_lead_it(service: ServiceStore, study: str) -> None:
    with pytest.raises(HeldError, match="leader"):
        service.leases.lead(study, "somebody else")
    assert service.leases.acquire(worker("w"), TTL) is None


def test_a_kind_that_measured_nothing_binds_nobody(service: ServiceStore, led: str) -> None:
    first = take(service, worker("a", hardware="other"))
    assert service.leases.kind_of(led) == "other"
    assert service.leases.acquire(worker("b"), TTL) is None
    service.leases.give_back(first.id)
    assert service.leases.kind_of(led) is None
    assert take(service, worker("b")).number == 0
    assert service.studies.study(led).machine == {"cpu": "where it was planned", MEASURED_ON: "toy"}


def test_a_study_measured_on_one_kind_is_not_led_by_another(service: ServiceStore, led: str) -> None:
    service.leases.finish(take(service, worker("a", hardware="other")).id, TrialOutcome.OOM)
    with pytest.raises(ConfigError, match="measured on other, and this machine is toy"):
        service.leases.lead(led, "leader", verifier=worker("leader"))
    service.leases.lead(led, "leader", verifier=worker("leader", hardware="other"))
    add(service, led)
    assert service.leases.acquire(worker("b"), TTL) is None
    assert take(service, worker("c", hardware="other")).number == 1


def test_a_trial_taken_over_by_its_leaders_own_hands_has_no_lease(
    service: ServiceStore, led: str, result: RunResult
) -> None:
    lease = take(service, worker("a"))
    assert service.studies.requeue_lost(led, "leader") == [0]
    service.studies.start_attempt(led, 0, "leader")
    for call in (
        lambda: service.leases.finish(lease.id, TrialOutcome.FEASIBLE, result=result),
        lambda: service.leases.renew(lease.id, TTL),
        lambda: service.leases.give_back(lease.id),
    ):
        with pytest.raises(LeaseGoneError):
            call()
    assert trial(service, led).state is TrialState.RUNNING
    service.studies.finish_trial(led, 0, TrialOutcome.OOM)
    assert trial(service, led).outcome is TrialOutcome.OOM
    add(service, led)
    assert take(service, worker("b", devices=("GPU-a",))).number == 1, "and its devices are free"


def test_a_lease_that_is_over_by_the_clock_counts_until_somebody_ends_it(
    service: ServiceStore, led: str, result: RunResult, clock: FakeClock
) -> None:
    lease = take(service, worker("a"))
    clock.advance(TTL + 1)
    assert service.leases.glance(led, []).lost
    service.leases.renew(lease.id, TTL)
    assert not service.leases.glance(led, []).lost
    clock.advance(TTL + 1)
    done = service.leases.finish(lease.id, TrialOutcome.FEASIBLE, result=result)
    assert done.result == result
    add(service, led)
    second = take(service, worker("a"))
    clock.advance(TTL + 1)
    assert service.leases.reap(led) == [1]
    with pytest.raises(LeaseGoneError):
        service.leases.finish(second.id, TrialOutcome.FEASIBLE, result=result)


def test_a_workers_name_is_its_tenants(service: ServiceStore, led: str) -> None:
    del led
    made = service.jobs.submit(toy_spec(), {}, labels={}, tenant="a")[0]
    service.studies.claim(made, "leader", Seconds(DAY))
    service.leases.lead(made, "leader")
    service.studies.set_state(made, StudyState.RUNNING)
    add(service, made, Origin.BASELINE)
    lease = take(service, worker("w"), tenant="a")
    assert lease.study_id == made
    for other in ("b", None):
        with pytest.raises(ConfigError, match="choose another"):
            service.leases.acquire(worker("w"), TTL, tenant=other)
    assert take(service, worker("w"), tenant="a").id == lease.id
    assert [one.tenant for one in service.leases.workers(Seconds(60.0))] == ["a"]


def test_no_two_measure_on_the_processors_of_one_host(service: ServiceStore, study: str, led: str) -> None:
    """Whatever else they have for themselves; on another host, or on GPUs alone, they may."""
    del led
    spec = service.studies.study(study).spec
    engine = spec.baseline.decode.engine.model_copy(update={"device": "cpu"})
    decode = spec.baseline.decode.model_copy(update={"engine": engine})
    slow = spec.baseline.model_copy(update={"decode": decode})
    params = SearchSpace(spec.space, spec.baseline).baseline_params
    for _ in range(3):
        service.studies.add_trial(study, params, slow, Origin.SEARCH, None)
    assert take(service, worker("gpu")).number == 0
    assert take(service, worker("first")).number == 1
    for facts in (worker("second"), worker("third", devices=(CPU,))):
        with pytest.raises(DevicesTakenError):
            service.leases.acquire(facts, TTL)
    assert take(service, worker("far", host="another")).number == 2


def test_a_device_is_named_once() -> None:
    with pytest.raises(ValidationError, match="'GPU-1' is named twice"):
        worker("w", devices=("GPU-1", "GPU-2", "GPU-1"))


def test_who_begins_the_comparison_ends_it(service: ServiceStore, led: str, result: RunResult) -> None:
    service.leases.finish(take(service, worker("a")).id, TrialOutcome.FEASIBLE, result=result)
    for pair, origin in ((0, Origin.VERIFY_BASELINE), (0, Origin.VERIFY_WINNER)):
        add(service, led, origin, pair)
    first = take(service, worker("a"))
    assert first.number == 1
    assert service.leases.acquire(worker("b"), TTL) is None, "runs of two machines are never compared"
    service.leases.finish(first.id, TrialOutcome.FEASIBLE, result=result)
    assert service.leases.acquire(worker("b"), TTL) is None
    assert take(service, worker("a")).number == 2


def test_a_comparison_whose_machine_is_gone_begins_anew(
    service: ServiceStore, led: str, result: RunResult, clock: FakeClock
) -> None:
    for pair in (0, 1):
        add(service, led, Origin.VERIFY_BASELINE, pair)
    service.leases.finish(take(service, worker("a")).id, TrialOutcome.FEASIBLE, result=result)
    service.leases.finish(take(service, worker("a")).id, TrialOutcome.FEASIBLE, result=result)
    clock.advance(HEARD - 1)
    assert not service.leases.glance(led, []).forsaken
    assert not service.leases.compare_anew(led)
    clock.advance(2.0)
    assert service.leases.acquire(worker("b"), TTL) is None
    assert service.leases.glance(led, []).forsaken
    assert service.leases.compare_anew(led)
    assert not service.leases.glance(led, []).forsaken
    assert [one.pair for one in service.studies.trials(led)] == [None, None, 1], "what was measured is of no pair"
    assert take(service, worker("b")).number == 2


def test_another_leaders_machine_begins_the_comparison_anew(
    service: ServiceStore, study: str, result: RunResult
) -> None:
    """The same machine under another name goes on with it."""
    add(service, study, Origin.VERIFY_BASELINE, 0)
    service.leases.lead(study, "leader", verifier=worker("leader", devices=("GPU-1",)))
    for _ in range(2):
        lease = take(service, worker("leader", devices=("GPU-1",)))
        service.leases.finish(lease.id, TrialOutcome.FEASIBLE, result=result)
    for name, host, pair in (("again", "h", 0), ("far", "another", None)):
        service.studies.release(study, "leader" if name == "again" else "again")
        service.studies.claim(study, name, Seconds(DAY))
        facts = worker(name, host=host, devices=("GPU-1",))
        service.leases.lead(study, name, verifier=facts)
        service.leases.acquire(facts, TTL)
        assert trial(service, study, 1).pair == pair


def test_a_worker_is_remembered_when_it_asks_again_after_days(
    service: ServiceStore, led: str, clock: FakeClock
) -> None:
    del led
    take(service, worker("a"))
    service.leases.acquire(worker("b"), TTL)
    clock.advance(3 * DAY)
    service.leases.acquire(worker("b"), TTL)
    assert [one.id for one in service.leases.workers(Seconds(9 * DAY))] == ["b"]


@pytest.mark.parametrize("how", ["lost", "fault"])
def test_a_repetition_that_never_ends_takes_its_configuration_off_the_front(
    service: ServiceStore, led: str, result: RunResult, clock: FakeClock, how: str
) -> None:
    service.leases.finish(take(service, worker("a")).id, TrialOutcome.FEASIBLE, result=result)
    assert [line.number for line in service.pages.front(led, "output_rate", "ttft_p90")] == [0]
    add(service, led, Origin.REPEAT)
    for _ in range(MAX_ATTEMPTS):
        lease = take(service, worker("a"))
        if how == "fault":
            service.leases.give_back(lease.id, fault="the disk is full")
        else:
            clock.advance(TTL + 1)
            service.leases.reap(led)
    assert trial(service, led, 1).state is TrialState.DONE
    assert service.pages.front(led, "output_rate", "ttft_p90") == []


def test_one_process_under_several_names_is_one_hand(service: ServiceStore, led: str) -> None:
    """A worker that leads asks as its study's owner, and as itself when it helps: its devices are there once."""
    for name in ("one", "the same", "and again"):
        service.leases.acquire(worker(name, devices=("GPU-1", "GPU-2")), TTL, study_id="none such")
    assert service.leases.hands(led, Seconds(60.0)) == 1
    service.leases.acquire(worker("another", devices=("GPU-3",)), TTL, study_id="none such")
    service.leases.acquire(worker("far", host="another", devices=("GPU-1", "GPU-2")), TTL, study_id="none such")
    assert service.leases.hands(led, Seconds(60.0)) == 3
