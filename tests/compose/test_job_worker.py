"""Workers: one study at a time, nothing finished is lost by a kill, and the service's end does not end a study."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from energyopt.compose.worker import Slot, Worker
from energyopt.compose.worker_pool import WorkerPool
from energyopt.core.clock import FakeClock
from energyopt.core.errors import ConfigError, StoreError
from energyopt.core.study import StudyState, TrialState
from energyopt.store.service_store import ServiceStore, open_service_store
from tuner.fake import FakeEvaluator
from tuner.fake_study import FakePowerController, toy_spec
from tuner.lease import DEFAULT_TTL
from tuner.loop import StudyRunner
from tuner.progress import StudyProgressSink

TOY_WORKER = """
import os, sys, threading, time, uuid
from energyopt.compose.worker import Worker
from energyopt.core.clock import MonotonicClock
from energyopt.core.units import Seconds
from energyopt.store.service_store import open_service_store
from tuner.fake import FakeEvaluator
from tuner.fake_study import FakePowerController
from tuner.loop import StudyRunner

class Fast(MonotonicClock):
    def sleep(self, duration):
        time.sleep(duration / 200)

url, attached = sys.argv[1], "--slot" in sys.argv
store, clock, drain = open_service_store(url), Fast(), threading.Event()

def run(study_id, owner, sink):
    print("begun", study_id, flush=True)
    runner = StudyRunner(
        store.studies, FakeEvaluator(clock), FakePowerController(), clock, owner, sink, lease_ttl=Seconds(2.0)
    )
    return runner.run(study_id)

def wait():
    sys.stdin.buffer.read()
    drain.set()

if attached:
    threading.Thread(target=wait, daemon=True).start()
def say(line):
    print(line, flush=True)

worker = Worker(store, run, lambda: f"{os.getpid()}:{uuid.uuid4().hex}", say, poll=0.05)
import energyopt.compose.worker as module
module.DEFAULT_TTL = Seconds(2.0)
print("ready", flush=True)
worker.work(threading.Event(), drain)
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/e.db"


@pytest.fixture
def store(url: str) -> Iterator[ServiceStore]:
    opened = open_service_store(url)
    yield opened
    opened.close()


def toy_worker(store: ServiceStore, clock: FakeClock, evaluator: FakeEvaluator | None = None) -> Worker:
    def run(study_id: str, owner: str, sink: StudyProgressSink) -> object:
        runner = StudyRunner(
            store.studies, evaluator or FakeEvaluator(clock), FakePowerController(), clock, owner, sink
        )
        return runner.run(study_id)

    owners = iter(f"worker-{n}" for n in range(100))
    return Worker(store, run, lambda: next(owners), lambda line: None, clock=clock)


def test_studies_are_worked_on_in_turn(store: ServiceStore) -> None:
    ids = [store.jobs.submit(toy_spec(trials=3, pairs=1, seed=n), {}, labels={})[0] for n in range(2)]
    worker = toy_worker(store, FakeClock())
    assert worker.work_once()
    assert store.studies.study(ids[0]).state.terminal
    assert store.studies.study(ids[1]).state is StudyState.QUEUED
    assert worker.work_once()
    assert not worker.work_once()
    states = [event.data["state"] for event in store.studies.events(ids[0]) if event.kind == "state"]
    assert states[:3] == ["planning", "running", "verifying"]
    progress = store.jobs.job(ids[0]).progress
    assert progress is not None
    assert progress["done"] == len([t for t in store.studies.trials(ids[0]) if t.state is TrialState.DONE])
    assert store.studies.study(ids[0]).owner is None


def test_what_ends_a_study_before_it_begins_is_told(store: ServiceStore) -> None:
    study = store.jobs.submit(toy_spec(), {}, labels={})[0]

    def run(study_id: str, owner: str, sink: StudyProgressSink) -> object:
        raise ConfigError("this host has no GPU")

    assert Worker(store, run, lambda: "w", lambda line: None).work_once()
    found = store.studies.study(study)
    assert (found.state, found.error, found.owner) == (StudyState.FAILED, "this host has no GPU", None)
    assert store.jobs.waiting() == []


def test_a_database_that_takes_nothing_is_told_once(store: ServiceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.jobs.submit(toy_spec(), {}, labels={})
    stop, tries, said = threading.Event(), iter(range(3)), list[str]()

    def full(*_: object) -> None:
        if next(tries) == 2:
            stop.set()
        raise StoreError("the disk is full")

    monkeypatch.setattr(store.studies, "claim", full)
    worker = Worker(store, lambda *_: None, lambda: "w", said.append, poll=0.001)
    worker.work(stop, threading.Event())
    assert said == ["waiting for the database: the disk is full"]


def test_a_fault_does_not_end_the_worker(store: ServiceStore) -> None:
    study = store.jobs.submit(toy_spec(), {}, labels={})[0]

    def run(study_id: str, owner: str, sink: StudyProgressSink) -> object:
        raise RuntimeError("a secret")

    assert Worker(store, run, lambda: "w", lambda line: None).work_once()
    found = store.studies.study(study)
    assert found.state is StudyState.FAILED
    assert "secret" not in (found.error or "")


def test_a_database_that_refused_is_not_the_fault_of_the_study(store: ServiceStore) -> None:
    study = store.jobs.submit(toy_spec(), {}, labels={})[0]

    def run(study_id: str, owner: str, sink: StudyProgressSink) -> object:
        store.studies.change_state(study_id, StudyState.FAILED, when=list(StudyState), error="away")
        raise StoreError("away")

    worker = Worker(store, run, lambda: "w", lambda line: None)
    tries = 0
    while worker.work_once():
        tries += 1
        assert tries < 10
    assert (tries, store.studies.study(study).state) == (4, StudyState.FAILED)


def test_a_worker_takes_nothing_that_another_holds(store: ServiceStore) -> None:
    study = store.jobs.submit(toy_spec(), {}, labels={})[0]
    store.studies.claim(study, "another", DEFAULT_TTL)
    assert not toy_worker(store, FakeClock()).work_once()


def spawn(url: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", TOY_WORKER, url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 200.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.02)


def test_killed_workers_lose_nothing_finished(url: str, store: ServiceStore) -> None:
    """Killed again and again in the middle of studies; the last one brings all of them to their end."""
    ids = [store.jobs.submit(toy_spec(trials=8, pairs=2, seed=n), {}, labels={})[0] for n in range(3)]

    def done() -> dict[tuple[str, int], str]:
        return {
            (study, trial.number): trial.model_dump_json()
            for study in ids
            for trial in store.studies.trials(study)
            if trial.state is TrialState.DONE
        }

    finished: dict[tuple[str, int], str] = {}
    for least in (2, 6):
        worker = spawn(url)
        wait_for(lambda: len(done()) >= least, "trials end")  # noqa: B023
        worker.kill()
        worker.communicate(timeout=20)
        after = done()
        assert finished.items() <= after.items(), "what was finished is as it was"
        finished = after
    worker = spawn(url)
    wait_for(lambda: all(store.studies.study(study).state.terminal for study in ids), "all studies end")
    worker.kill()
    worker.communicate(timeout=20)
    assert finished.items() <= done().items()
    for study in ids:
        attempts = [trial.attempts for trial in store.studies.trials(study)]
        assert max(attempts) <= 3
        assert sum(attempts) <= len(attempts) + 2


def test_a_killed_database_loses_nothing_finished(own_postgres: Any) -> None:
    """``kill -9`` of the server in the middle of studies: workers wait, and finish once it is back."""
    store = open_service_store(own_postgres.url)
    ids = [store.jobs.submit(toy_spec(trials=8, pairs=2, seed=n), {}, labels={})[0] for n in range(2)]

    def done() -> dict[tuple[str, int], str]:
        trials = {(study, trial.number): trial for study in ids for trial in store.studies.trials(study)}
        return {key: trial.model_dump_json() for key, trial in trials.items() if trial.state is TrialState.DONE}

    with spawn(own_postgres.url) as worker:
        wait_for(lambda: len(done()) >= 3, "trials end")
        finished = done()
        own_postgres.kill()
        time.sleep(1.0)
        with pytest.raises(StoreError):
            store.studies.study(ids[0])
        assert worker.poll() is None, "the worker waits for it"
        own_postgres.start()
        wait_for(lambda: all(store.studies.study(study).state.terminal for study in ids), "all studies end")
        worker.kill()
    assert finished.items() <= done().items(), "what was finished is as it was"
    assert [store.studies.study(study).state for study in ids] == [StudyState.SUCCEEDED] * 2
    store.close()


def test_several_workers_share_the_studies(url: str, store: ServiceStore) -> None:
    ids = [store.jobs.submit(toy_spec(trials=3, pairs=1, seed=n), {}, labels={})[0] for n in range(6)]
    workers = [spawn(url) for _ in range(2)]
    wait_for(lambda: all(store.studies.study(study).state.terminal for study in ids), "all studies end")
    said = []
    for worker in workers:
        worker.kill()
        said.append([line for line in worker.communicate(timeout=20)[0].splitlines() if line.startswith("begun")])
    assert sorted(line.split()[1] for lines in said for line in lines) == sorted(ids), "each once"


def test_a_slot_is_one_workers(tmp_path: Path) -> None:
    first, second, other = Slot(tmp_path, 0), Slot(tmp_path, 0), Slot(tmp_path, 1)
    assert first.take(lambda: True, lambda line: None)
    assert other.take(lambda: True, lambda line: None)
    said: list[str] = []
    asked = iter([False, False, True])
    assert not second.take(lambda: next(asked), said.append, poll=0.01)
    assert len(said) == 1
    first.give_back()
    assert second.take(lambda: True, said.append)
    for slot in (first, second, other):
        slot.give_back()


def test_a_pool_restarts_what_dies_and_lets_go_of_what_works(
    url: str, store: ServiceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("energyopt.compose.worker_pool.FIRST_WAIT", 0.05)
    pool = WorkerPool(1, os.environ, tmp_path, command=[sys.executable, "-c", TOY_WORKER, url])
    pool.start()
    wait_for(lambda: len(pool.pids) == 1, "a worker starts")
    first = pool.pids[0]
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: len(pool.pids) == 1 and pool.pids[0] != first, "another one starts")
    second = pool.pids[0]
    study = store.jobs.submit(toy_spec(trials=10, pairs=2), {}, labels={})[0]
    wait_for(lambda: store.studies.study(study).state is StudyState.RUNNING, "the study runs")
    said: list[str] = []
    pool.close(said.append, patience=0.0)
    assert str(second) in said[0], "who stopped the service is told what still runs"
    wait_for(lambda: store.studies.study(study).state.terminal, "it ends all the same")
    wait_for(lambda: pool.pids == [], "and then the worker ends, as nobody is left who started it")


def test_an_idle_pool_ends_at_once(url: str, store: ServiceStore, tmp_path: Path) -> None:
    pool = WorkerPool(1, os.environ, tmp_path, command=[sys.executable, "-c", TOY_WORKER, url])
    pool.start()
    wait_for(lambda: "ready" in _log(tmp_path), "the worker is ready")
    said: list[str] = []
    pool.close(said.append, patience=20.0)
    assert (said, pool.pids) == ([], [])


def _log(folder: Path) -> str:
    path = folder / "slot-0.log"
    return path.read_text() if path.exists() else ""
