"""Every source of trials, direct and over HTTP, on both databases: one behaviour."""

from __future__ import annotations

import math
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from api.jobs.app import create_job_app
from api.serve import Server, bind
from energyopt.client import Client
from energyopt.compose.host_devices import HostDevices
from energyopt.compose.http_source import HttpSource
from energyopt.compose.job_service import ApiRequest, job_services
from energyopt.compose.results import Session
from energyopt.core.clock import FakeClock
from energyopt.core.errors import ConfigError, StoreError
from energyopt.core.leases import MAX_ATTEMPTS, TTL, DevicesTakenError, LeaseGoneError, WorkerFacts
from energyopt.core.results import RunResult, summarize
from energyopt.core.slo import Slo
from energyopt.core.study import Origin, StudyState, TrialOutcome, TrialState
from energyopt.core.units import Seconds
from energyopt.store.service_store import ServiceStore, open_service_store
from tuner.fake import FakeEvaluator
from tuner.fake_study import toy_spec
from tuner.source import DirectSource, Failure, TrialSource
from tuner.space import SearchSpace


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty") / "e.db"
    open_service_store(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path, empty: Path, clock: FakeClock) -> Iterator[ServiceStore]:
    if request.param == "sqlite":
        shutil.copyfile(empty, tmp_path / "e.db")
        url = f"sqlite:///{tmp_path}/e.db"
    else:
        url = request.getfixturevalue("postgres_url")
    opened = open_service_store(url, clock=clock)
    yield opened
    opened.close()


@pytest.fixture(params=["direct", "http"])
def source(request: pytest.FixtureRequest, store: ServiceStore, tmp_path: Path) -> Iterator[TrialSource]:
    if request.param == "direct":
        yield DirectSource(store.studies, store.leases)
        return
    session = Session(store.studies, store.name, tmp_path / "studies")
    services = replace(job_services(ApiRequest(), session, store, HostDevices()), hosts=None)
    with ExitStack() as stack:
        app, listener = create_job_app(services), bind("127.0.0.1", 0)
        server = Server(app, grace=Seconds(0.1), abort=app.state.hub.close)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        stack.callback(thread.join, 20)
        stack.callback(server.stop)
        client = stack.enter_context(Client(f"http://127.0.0.1:{listener.getsockname()[1]}"))
        yield HttpSource(client)


def worker(number: int = 1, *, devices: tuple[str, ...] | None = None, hardware: str = "toy") -> WorkerFacts:
    return WorkerFacts(id=f"w{number}", host="h", hardware=hardware, devices=devices or (f"GPU-{number}",))


@pytest.fixture
def study(store: ServiceStore) -> str:
    """A study that somebody leads, with three queued trials."""
    made = store.jobs.submit(toy_spec(), {}, labels={})[0]
    store.studies.claim(made, "leader", Seconds(1e6))
    store.leases.lead(made, "leader")
    store.studies.set_state(made, StudyState.RUNNING)
    spec = store.studies.study(made).spec
    space = SearchSpace(spec.space, spec.baseline)
    for place, params in enumerate(space.plan.points[:3]):
        origin = Origin.BASELINE if place == 0 else Origin.SEARCH
        store.studies.add_trial(made, params, space.apply(params), origin)
    return made


@pytest.fixture
def result(clock: FakeClock) -> RunResult:
    spec = toy_spec()
    found = FakeEvaluator(clock).run(
        spec.baseline, spec.workload, spec.plan, [Slo.parse(slo) for slo in spec.slos], lambda progress: None
    )
    endless = summarize([0.1, math.inf])
    assert endless is not None
    return found.model_copy(update={"latencies": {**found.latencies, "e2e": endless}})


def test_a_trial_goes_to_one_worker_with_all_that_it_needs(
    source: TrialSource, store: ServiceStore, study: str, result: RunResult
) -> None:
    spec, deployment = store.studies.study(study).spec, store.studies.trials(study)[0].deployment
    first, second = source.acquire(worker(1)), source.acquire(worker(2))
    assert first is not None
    assert second is not None
    assert (first.number, second.number, first.attempt) == (0, 1, 1)
    assert (first.deployment, first.workload, first.spec) == (deployment, spec.workload, spec)
    assert source.acquire(worker(1)) == first, "who asks again has it already"
    assert source.complete(first.lease, result) is TrialOutcome(store.studies.trials(study)[0].outcome or "")
    assert store.studies.trials(study)[0].result == result, "infinities included"
    assert source.complete(first.lease, result) is store.studies.trials(study)[0].outcome, "said twice, done once"
    source.fail(second.lease, Failure(outcome=TrialOutcome.OOM, error="too big"))
    done = store.studies.trials(study)[1]
    assert (done.state, done.outcome, done.error) == (TrialState.DONE, TrialOutcome.OOM, "too big")
    kinds = [(event.kind, event.data["trial"]) for event in store.studies.events(study)]
    assert kinds == [("trial_started", 0), ("trial_started", 1), ("trial_finished", 0), ("trial_finished", 1)]
    third = source.acquire(worker(1))
    assert third is not None
    assert third.number == 2
    assert source.acquire(worker(2)) is None, "nothing is left"


def test_a_late_result_is_turned_away(
    source: TrialSource, store: ServiceStore, study: str, result: RunResult, clock: FakeClock
) -> None:
    first = source.acquire(worker(1))
    assert first is not None
    clock.advance(TTL - 1)
    source.beat(first.lease, "measuring", 0.5)
    assert [(one.stage, one.fraction) for one in store.leases.glance(study, []).leases] == [("measuring", 0.5)]
    clock.advance(TTL - 1)
    source.beat(first.lease, "measuring", 0.9)
    clock.advance(TTL + 1)
    again = source.acquire(worker(2, devices=("GPU-1",)))
    assert again is not None
    assert (again.number, again.attempt) == (first.number, 2), "its devices are free, and the trial is another's"
    for call in (
        lambda: source.complete(first.lease, result),
        lambda: source.beat(first.lease, "measuring", 1.0),
        lambda: source.fail(first.lease, Failure(outcome=TrialOutcome.OOM, error="x")),
        lambda: source.fault(first.lease, "x"),
        lambda: source.release(first.lease),
        lambda: source.beat("nonsense", "", 0.0),
    ):
        with pytest.raises(LeaseGoneError):
            call()
    assert source.complete(again.lease, result)
    assert store.studies.trials(study)[0].attempts == 2


def test_a_result_that_contradicts_itself_is_not_taken(
    source: TrialSource, store: ServiceStore, study: str, result: RunResult
) -> None:
    """And what was measured stays the worker's to tell of: it is a fault around the trial, and no result of it."""
    trial = source.acquire(worker(1))
    assert trial is not None
    for wrong in (
        result.model_copy(update={"verdicts": ()}),
        result.model_copy(update={"readings": ()}),
        result.model_copy(update={"failed_requests": result.requests + 1}),
    ):
        with pytest.raises(ConfigError):
            source.complete(trial.lease, wrong)
    assert store.studies.trials(study)[0].state is TrialState.RUNNING
    assert source.complete(trial.lease, result)


def test_devices_belong_to_one_lease_at_a_time(source: TrialSource, study: str, result: RunResult) -> None:
    first = source.acquire(worker(1, devices=("GPU-1", "GPU-2")))
    assert first is not None
    with pytest.raises(DevicesTakenError):
        source.acquire(worker(2, devices=("GPU-2", "GPU-3")))
    assert source.acquire(worker(3, devices=("GPU-3",))) is not None
    source.complete(first.lease, result)
    assert source.acquire(worker(2, devices=("GPU-2",))) is not None


def test_faults_of_the_infrastructure_are_tried_again_and_end(
    source: TrialSource, store: ServiceStore, study: str
) -> None:
    for attempt in range(1, MAX_ATTEMPTS + 1):
        trial = source.acquire(worker(1))
        assert trial is not None
        assert (trial.number, trial.attempt) == (0, attempt)
        source.fault(trial.lease, "the disk is full")
    ended = store.studies.trials(study)[0]
    assert (ended.outcome, ended.attempts) == (TrialOutcome.FAILED, MAX_ATTEMPTS)
    assert "the disk is full" in (ended.error or "")
    nxt = source.acquire(worker(1))
    assert nxt is not None
    assert nxt.number == 1
    source.release(nxt.lease)
    back = store.studies.trials(study)[1]
    assert (back.state, back.attempts) == (TrialState.QUEUED, 0), "as if it had never been leased"


def test_a_worker_that_vanishes_again_and_again_is_a_crash(
    source: TrialSource, store: ServiceStore, study: str, clock: FakeClock
) -> None:
    for _ in range(MAX_ATTEMPTS):
        assert source.acquire(worker(1)) is not None
        clock.advance(TTL + 1)
    following = source.acquire(worker(1))
    assert following is not None
    assert following.number == 1
    lost = store.studies.trials(study)[0]
    assert (lost.outcome, lost.attempts) == (TrialOutcome.CRASHED, MAX_ATTEMPTS)


def test_who_gets_nothing(source: TrialSource, store: ServiceStore, study: str) -> None:
    """Another kind of machine, another evaluator, a study that nobody leads or that is to stop."""
    first = source.acquire(worker(1))
    assert first is not None
    assert source.acquire(worker(2, hardware="other")) is None, "trials of one study are of one kind of machine"
    only = worker(3).model_copy(update={"kinds": ("simulator",)})
    assert source.acquire(only) is None
    store.studies.set_state(study, StudyState.PAUSING)
    assert source.acquire(worker(4)) is None
    store.studies.set_state(study, StudyState.RUNNING)
    store.studies.release(study, "leader")
    assert source.acquire(worker(4)) is None, "nobody leads"
    store.studies.claim(study, "somebody's own machine", Seconds(100.0))
    assert source.acquire(worker(4)) is None, "who works on it alone is not disturbed"
    store.studies.release(study, "somebody's own machine")
    store.studies.claim(study, "leader", Seconds(100.0))
    assert source.acquire(worker(4)) is not None


def test_the_comparison_runs_on_one_machine(source: TrialSource, store: ServiceStore, study: str) -> None:
    spec = store.studies.study(study).spec
    space = SearchSpace(spec.space, spec.baseline)
    store.leases.lead(study, "leader", verifier=worker(9))
    for number in range(1, 4):
        assert source.acquire(worker(number)) is not None
    trial = store.studies.add_trial(study, space.baseline_params, spec.baseline, Origin.VERIFY_BASELINE, 0)
    assert source.acquire(worker(4)) is None
    taken = source.acquire(worker(9))
    assert taken is not None
    assert (taken.number, taken.workload) == (trial.number, spec.verify_workload)


def test_many_workers_share_a_queue(source: TrialSource, store: ServiceStore, study: str) -> None:
    """At once, from threads: each trial once, and nobody fails."""
    got: list[int] = []
    start = threading.Barrier(4)

    def take(number: int) -> None:
        start.wait()
        for _ in range(20):
            try:
                found = source.acquire(worker(number))
            except StoreError:  # SQLite: another one writes
                continue
            if found is not None:
                got.append(found.number)
            return

    threads = [threading.Thread(target=take, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(got) == [0, 1, 2]
    assert [trial.attempts for trial in store.studies.trials(study)] == [1, 1, 1]


def test_what_a_configuration_cuts_beyond_the_baseline_has_failed(
    store: ServiceStore, study: str, result: RunResult
) -> None:
    """By lease as by one's own hands."""
    source = DirectSource(store.studies, store.leases)
    outcomes = []
    for cut in (0, 10):
        trial = source.acquire(worker(1))
        assert trial is not None
        outcomes.append(source.complete(trial.lease, result.model_copy(update={"cut_requests": cut})))
    found = store.studies.trials(study)[1].result
    assert found is not None
    assert (found.failed_requests, found.cut_requests) == (result.failed_requests + 10, 0)
    assert outcomes == [TrialOutcome.FEASIBLE, TrialOutcome.INFEASIBLE]


def test_workers_are_known(store: ServiceStore, study: str, clock: FakeClock) -> None:
    source = DirectSource(store.studies, store.leases)
    source.acquire(worker(1))
    source.acquire(worker(2, hardware="other"))
    found = {one.id: (one.trial, one.devices) for one in store.leases.workers(Seconds(60.0))}
    assert found == {"w1": (0, ("GPU-1",)), "w2": (None, ("GPU-2",))}
    assert store.leases.hands(study, Seconds(60.0)) == 1, "the other kind is no hand of this study"
    clock.advance(120.0)
    assert store.leases.hands(study, Seconds(60.0)) == 0
    assert store.leases.workers(Seconds(60.0), tenant="a") == []
