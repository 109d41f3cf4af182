"""Studies that are led in one place and measured in several: side by side, interrupted, paused, and taken over."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from energyopt.compose import lead
from energyopt.compose.lead import ASIDE, LeadOverError, lead_aside, lead_here
from energyopt.compose.worker import Conductor, Worker
from energyopt.core.clock import MonotonicClock
from energyopt.core.config import Deployment
from energyopt.core.errors import ConfigError, NoFeasibleError
from energyopt.core.leases import WorkerFacts
from energyopt.core.study import Origin, StudyState, TrialState
from energyopt.core.units import Seconds
from energyopt.store.service_store import ServiceStore, open_service_store
from tuner.fake import FakeEvaluator
from tuner.fake_study import FakePowerController, toy_spec
from tuner.lease_worker import LeaseWorker
from tuner.ports import Evaluator, PowerController
from tuner.progress import StudyProgress, StudyProgressSink
from tuner.source import DirectSource, LeasedTrial


class NoTime(MonotonicClock):
    def sleep(self, duration: Seconds) -> None:
        """The toy machine is not waited for."""


class ToyBench:
    """Measures the toy machine; ``before`` is called first, with the trial."""

    def __init__(self, before: Callable[[LeasedTrial], None] = lambda trial: None) -> None:
        self.power, self._before = FakePowerController(), before
        self.measured: list[int] = []

    def tools(self, trial: LeasedTrial) -> tuple[Evaluator, PowerController]:
        self._before(trial)
        self.measured.append(trial.number)
        return FakeEvaluator(NoTime()), self.power


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty") / "e.db"
    open_service_store(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def store(empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceStore]:
    monkeypatch.setattr(lead, "LOOK", 0.03)
    shutil.copyfile(empty, tmp_path / "e.db")
    opened = open_service_store(f"sqlite:///{tmp_path}/e.db")
    yield opened
    opened.close()


def facts(name: str) -> WorkerFacts:
    return WorkerFacts(id=name, host="h", hardware="toy", devices=(name,))


def submit(store: ServiceStore, **changes: object) -> str:
    made = store.jobs.submit(toy_spec(**changes), {}, labels={})[0]  # type: ignore[arg-type]
    store.studies.claim(made, "me", Seconds(60.0))
    return made


def nothing(progress: StudyProgress) -> None:
    """Progress that nobody reads."""


def store_url(store: ServiceStore) -> str:
    return f"sqlite:///{store.name}"


def help_with(store: ServiceStore, name: str, bench: ToyBench, stop: threading.Event) -> threading.Thread:
    source = DirectSource(store.studies, store.leases)
    hand = LeaseWorker(source, facts(name), bench, lambda line: None, wait=Seconds(0.0), pause=0.03)
    thread = threading.Thread(target=hand.work, args=(stop,))
    thread.start()
    return thread


def test_one_leads_and_others_help(store: ServiceStore) -> None:
    """Every trial is measured once, by somebody; the comparison is the leader's alone; the gate is asked there."""
    study = submit(store, trials=10, pairs=2)
    together = threading.Barrier(3, timeout=20)

    def wait(trial: LeasedTrial) -> None:
        if trial.number in (0, 1, 2):  # three are under way at once, or this never goes on
            together.wait()

    benches, stop = [ToyBench(wait) for _ in range(3)], threading.Event()
    helpers = [help_with(store, f"helper-{n}", benches[n], stop) for n in range(2)]
    until = time.monotonic() + 20
    while store.leases.hands(study, Seconds(60.0)) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    asked: list[tuple[Deployment, str]] = []

    class Gate:
        def refuses(self, candidate: Deployment) -> str | None:
            asked.append((candidate, threading.current_thread().name))
            return None

    try:
        lead_here(store, store.studies.study(study), facts("me"), benches[2], nothing, lambda line: None, gate=Gate())
    finally:
        stop.set()
        for helper in helpers:
            helper.join(20)
    found = store.studies.study(study)
    assert found.state is StudyState.SUCCEEDED
    trials = store.studies.trials(study)
    measured = [number for bench in benches for number in bench.measured]
    assert sorted(measured) == [trial.number for trial in trials]
    assert all(len(bench.measured) > 0 for bench in benches)
    compared = {trial.number for trial in trials if trial.origin.verifies}
    assert compared <= set(benches[2].measured)
    assert {name for _, name in asked} == {threading.current_thread().name}, "between trials, where they are measured"
    assert len({str(trial.params) for trial in trials if trial.origin is Origin.SEARCH}) == sum(
        trial.origin is Origin.SEARCH for trial in trials
    ), "nobody measured what another one did"
    kinds = [event.kind for event in store.studies.events(study)]
    assert kinds.count("trial_started") == kinds.count("trial_finished") == len(trials)


def test_an_interrupt_gives_the_trial_back_and_leaves_no_limit(store: ServiceStore) -> None:
    study = submit(store, trials=6, pairs=1)

    def interrupt(trial: LeasedTrial) -> None:
        if trial.number == 2:
            raise KeyboardInterrupt

    bench = ToyBench(interrupt)
    with pytest.raises(KeyboardInterrupt):
        lead_here(store, store.studies.study(study), facts("me"), bench, nothing, lambda line: None)
    trials = store.studies.trials(study)
    assert [trial.state for trial in trials] == [TrialState.DONE] * 2 + [TrialState.QUEUED]
    assert trials[2].attempts == 0
    found = store.studies.study(study)
    assert (found.owner, found.state) == (None, StudyState.RUNNING)
    store.studies.claim(study, "me", Seconds(60.0))
    lead_here(store, found, facts("me"), ToyBench(), nothing, lambda line: None)
    assert store.studies.study(study).state is StudyState.SUCCEEDED
    assert store.studies.trials(study)[:2] == trials[:2]


def test_a_stop_waits_for_what_runs(store: ServiceStore) -> None:
    study = submit(store, trials=6, pairs=1)

    def pause(trial: LeasedTrial) -> None:
        if trial.number == 1:
            store.studies.change_state(study, StudyState.PAUSING, when=[StudyState.RUNNING])

    lead_here(store, store.studies.study(study), facts("me"), ToyBench(pause), nothing, lambda line: None)
    assert store.studies.study(study).state is StudyState.PAUSED
    states = [trial.state for trial in store.studies.trials(study)]
    assert states[:2] == [TrialState.DONE] * 2
    assert TrialState.RUNNING not in states


def test_a_study_is_led_where_nothing_is_measured(store: ServiceStore) -> None:
    """And says so, as nobody compared answers; who takes it over keeps what runs elsewhere."""
    study, over, stop = submit(store, trials=5, pairs=2), threading.Event(), threading.Event()

    def end_leading(trial: LeasedTrial) -> None:
        if trial.number == 2 and not over.is_set():
            over.set()
            until = time.monotonic() + 20
            while store.studies.study(study).owner == "me" and time.monotonic() < until:
                time.sleep(0.02)

    helper = help_with(store, "far", ToyBench(end_leading), stop)
    try:
        with pytest.raises(LeadOverError):
            lead_aside(store, study, "me", nothing, over)
        store.studies.claim(study, "another", Seconds(60.0))
        lead_aside(store, study, "another", nothing, threading.Event())
    finally:
        stop.set()
        helper.join(20)
    found = store.studies.study(study).recommendation
    assert found is not None
    assert (ASIDE in found.note) is (found.pairs > 0)
    assert max(trial.attempts for trial in store.studies.trials(study)) == 1, "nothing was measured twice"


def test_what_is_wrong_with_a_machine_is_a_fault_and_not_a_result(store: ServiceStore) -> None:
    study = submit(store, trials=3, pairs=1)
    failed = [0]

    def fail(trial: LeasedTrial) -> None:
        if trial.number == 1 and failed[0] < 2:
            failed[0] += 1
            raise ConfigError("this host has no GPU") if failed[0] == 1 else RuntimeError("a secret")

    said: list[str] = []
    lead_here(store, store.studies.study(study), facts("me"), ToyBench(fail), nothing, said.append)
    trial = store.studies.trials(study)[1]
    assert (trial.attempts, trial.error) == (3, None)
    assert any("no GPU" in line for line in said)
    assert not any("secret" in line for line in said)


def test_nothing_feasible_goes_up(store: ServiceStore) -> None:
    study = submit(store, trials=3, pairs=1, slos=("ttft:p90<1us",))
    with pytest.raises(NoFeasibleError):
        lead_here(store, store.studies.study(study), facts("me"), ToyBench(), nothing, lambda line: None)
    assert store.studies.study(study).state is StudyState.NO_FEASIBLE


def test_a_conductor_leads_many_at_once(store: ServiceStore) -> None:
    ids = [store.jobs.submit(toy_spec(trials=2, pairs=1, seed=n), {}, labels={})[0] for n in range(3)]
    over, stop, drain = threading.Event(), threading.Event(), threading.Event()

    def run(study_id: str, owner: str, sink: StudyProgressSink) -> None:
        lead_aside(store, study_id, owner, sink, over)

    owners = iter(f"leader-{n}" for n in range(100))
    conductor = Conductor(store, run, lambda: next(owners), lambda line: None, poll=0.1)
    thread = threading.Thread(target=conductor.work, args=(stop, drain))
    thread.start()
    until = time.monotonic() + 20
    while any(store.studies.study(study).owner is None for study in ids):
        assert time.monotonic() < until, "all are led though none is measured"
        time.sleep(0.1)
    helper = help_with(store, "far", ToyBench(), ended := threading.Event())
    while not all(store.studies.study(study).state.terminal for study in ids):
        assert time.monotonic() < until + 20
        time.sleep(0.1)
    for event in (ended, stop):
        event.set()
    helper.join(20)
    thread.join(20)
    conductor.wait()
    assert [store.studies.study(study).state for study in ids] == [StudyState.SUCCEEDED] * 3
    trials = [trial for study in ids for trial in store.studies.trials(study)]
    assert all(trial.state is TrialState.DONE and trial.attempts == 1 for trial in trials), "each once, by the helper"


def test_a_worker_without_a_study_helps(store: ServiceStore) -> None:
    helped: list[int] = []

    def help_out() -> bool:
        helped.append(1)
        return False

    worker = Worker(store, lambda *_: None, lambda: "w", lambda line: None, help_out=help_out)
    assert not worker.work_once()
    assert helped == [1]


def test_a_study_that_another_kind_of_machine_began_is_left_to_it(store: ServiceStore) -> None:
    """It is not failed by one that could not compare anything with what was measured."""
    began, fresh = (store.jobs.submit(toy_spec(seed=n), {}, labels={})[0] for n in range(2))
    led: list[str] = []

    def lead_it(study_id: str, owner: str, sink: StudyProgressSink) -> None:
        led.append(study_id)

    worker = Worker(store, lead_it, lambda: "w", lambda line: None, suits=lambda study: study != began)
    assert worker.work_once()
    assert led == [fresh]
    assert store.studies.study(began).state is StudyState.QUEUED


def test_a_study_measured_elsewhere_says_why_it_cannot_go_on_here(store: ServiceStore) -> None:
    study = submit(store, trials=4, pairs=1)

    def interrupt(trial: LeasedTrial) -> None:
        if trial.number == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lead_here(store, store.studies.study(study), facts("me"), ToyBench(interrupt), nothing, lambda line: None)
    store.studies.claim(study, "other", Seconds(60.0))
    other = facts("other").model_copy(update={"hardware": "another toy"})
    with pytest.raises(ConfigError, match="measured on toy, and this machine is another toy"):
        lead_here(store, store.studies.study(study), other, ToyBench(), nothing, lambda line: None)


def test_a_comparison_begins_anew_where_its_machine_is_gone(store: ServiceStore) -> None:
    """What two machines measured is never compared."""
    study, over = submit(store, trials=3, pairs=2, seed=2), threading.Event()
    stops = [threading.Event(), threading.Event()]
    first_one = threading.Event()

    def vanish(trial: LeasedTrial) -> None:
        if trial.origin.verifies:
            stops[0].set()  # after this run it asks no more
            first_one.set()

    benches = [ToyBench(vanish), ToyBench()]
    failed: list[BaseException] = []

    def lead_it() -> None:
        try:
            lead_aside(store, study, "me", nothing, over)
        except BaseException as error:  # noqa: BLE001  looked at below
            failed.append(error)

    leader = threading.Thread(target=lead_it)
    leader.start()
    hands = [help_with(store, "first", benches[0], stops[0])]
    try:
        assert first_one.wait(30)
        hands[0].join(30)
        with create_engine(store_url(store)).begin() as database:
            database.execute(text("DELETE FROM energyopt_workers WHERE id = 'first'"))
        hands.append(help_with(store, "second", benches[1], stops[1]))
        leader.join(30)
        assert not leader.is_alive()
    finally:
        over.set()
        for stop, hand in zip(stops, hands, strict=False):
            stop.set()
            hand.join(20)
        leader.join(20)
    assert failed == []
    trials = store.studies.trials(study)
    compared = {trial.number for trial in trials if trial.pair is not None}
    assert len(compared) == 4, "two pairs"
    assert compared <= set(benches[1].measured)
    dropped = [trial for trial in trials if trial.origin.verifies and trial.pair is None]
    assert len(dropped) == 1
    assert store.studies.study(study).state is StudyState.SUCCEEDED


def test_what_an_errand_raises_goes_to_who_sent_it() -> None:
    """Its own TimeoutError too: that was taken for one of the wait, for ever."""
    over, caught = threading.Event(), list[BaseException]()
    errands = lead.Errands(over)

    def late() -> None:
        raise TimeoutError("the gate's engine did not start")

    def send() -> None:
        try:
            errands.send(late)
        except BaseException as error:  # noqa: BLE001  looked at below
            caught.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    while not errands.do_one():
        time.sleep(0.001)
    sender.join(5)
    over.set()
    sender.join(5)
    assert [type(error) for error in caught] == [TimeoutError]
