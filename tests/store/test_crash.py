"""``kill -9`` at any moment loses nothing that a method had returned from, and of two processes one wins."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from energyopt.core.config import Deployment
from energyopt.core.errors import StoreError
from energyopt.core.results import RunResult
from energyopt.core.study import Origin, StudySpec, TrialOutcome, TrialState
from energyopt.core.units import Seconds
from energyopt.store.database import open_store

WRITE_UNTIL_KILLED = """
import itertools, json, os, sys
from energyopt.core.results import RunResult
from energyopt.core.study import Origin, TrialOutcome, TrialState
from energyopt.store.database import open_store
url, template = sys.argv[1], RunResult.model_validate_json(sys.argv[2])
me = str(os.getpid())
store = open_store(url)
study = store.study("latest")
store.requeue_lost(study.id, me)
lost = [trial.number for trial in store.trials(study.id) if trial.state is TrialState.QUEUED]  # also never started ones
for trial in itertools.count():
    number = lost.pop() if lost else store.add_trial(study.id, {"x": trial}, study.spec.baseline, Origin.SEARCH).number
    store.start_attempt(study.id, number, me)
    print(json.dumps(["started", number]), flush=True)
    result = template.model_copy(update={"output_tokens": number + 1})
    store.finish_trial(study.id, number, TrialOutcome.FEASIBLE, result=result)
    print(json.dumps(["finished", number]), flush=True)
    store.add_event(study.id, "finished", {"number": number})
    print(json.dumps(["told", number]), flush=True)
"""


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", script, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def kill_after(writer: subprocess.Popen[str], lines: int, pause: float) -> list[tuple[str, int]]:
    """What ``writer`` said before it was killed: ``pause`` seconds after its line number ``lines``."""
    assert writer.stdout is not None
    first = [writer.stdout.readline() for _ in range(lines)]
    time.sleep(pause)
    writer.send_signal(signal.SIGKILL)
    said = [line for line in [*first, *writer.stdout] if line.endswith("\n")]  # the last may be cut
    _, errors = writer.communicate(timeout=60)
    assert writer.returncode == -signal.SIGKILL, errors
    return [(word, number) for word, number in map(json.loads, said)]


def test_killed_writers_lose_nothing_they_had_finished(url: str, spec: StudySpec, result: RunResult) -> None:
    chance = random.Random(20260101)
    with open_store(url) as store:
        study = store.create_study(spec, {}).id
    said: list[tuple[str, int]] = []
    for _ in range(3):
        writer = start(WRITE_UNTIL_KILLED, url, result.model_dump_json())
        said += kill_after(writer, chance.randint(10, 60), chance.uniform(0, 0.02))
        with open_store(url) as store:
            trials = store.trials(study)
            told = {event.data["number"] for event in store.events(study)}
        states = {trial.number: trial.state for trial in trials}
        finished = {number for word, number in said if word == "finished"}
        assert {states[number] for number in finished} <= {TrialState.DONE}
        assert {number for word, number in said if word == "told"} <= told
        assert all(states[number] is not TrialState.QUEUED for word, number in said if word == "started")
        assert list(states) == list(range(len(trials)))
        for trial in trials:  # a trial is whole or not there
            assert (trial.state is TrialState.DONE) == (trial.result is not None) == (trial.outcome is not None)
            assert trial.result is None or trial.result.output_tokens == trial.number + 1
        assert sum(state is not TrialState.DONE for state in states.values()) <= 1  # the one that was being run
    assert len(finished) > 10


OPEN = """
import sys
from energyopt.store.database import open_store
print("opening", flush=True)
open_store(sys.argv[1])
print("open", flush=True)
sys.stdin.readline()
"""


def test_a_database_opens_after_kills_during_its_creation(tmp_path: Path) -> None:
    chance = random.Random(20260102)
    for attempt in range(3):
        path = str(tmp_path / f"{attempt}.db")
        opener = start(OPEN, path)
        assert opener.stdout is not None
        assert opener.stdout.readline() == "opening\n"
        time.sleep(chance.uniform(0, 0.06))
        opener.send_signal(signal.SIGKILL)
        opener.communicate(timeout=60)
        with open_store(path) as store:
            assert store.studies() == []


COMPETE = """
import sys
from energyopt.core.errors import StoreError
from energyopt.store.database import open_store
store = open_store(sys.argv[1])
study, me = store.study("latest").id, sys.argv[2]
print("ready", flush=True)
for line in sys.stdin:
    try:
        if line == "claim\\n":
            store.claim(study, me, 60)
        else:
            store.start_attempt(study, int(line), me)
        print("won", flush=True)
    except StoreError:
        print("lost", flush=True)
"""


def test_of_two_processes_one_wins(url: str, spec: StudySpec, deployment: Deployment) -> None:
    with open_store(url) as store:
        study = store.create_study(spec, {}).id
        for _ in range(20):
            store.add_trial(study, {}, deployment, Origin.SEARCH)
        rivals = {name: start(COMPETE, url, name) for name in ("one", "two")}
        try:
            assert answers(rivals) == ["ready", "ready"]
            for _ in range(20):
                ask(rivals, "claim")
                assert sorted(answers(rivals)) == ["lost", "won"]
                owner = store.study(study).owner
                assert owner is not None
                store.release(study, owner)
            for number in range(20):
                ask(rivals, str(number))
                assert sorted(answers(rivals)) == ["lost", "won"]
            assert {trial.attempts for trial in store.trials(study)} == {1}
        finally:
            for rival in rivals.values():
                rival.communicate(timeout=60)


def ask(rivals: dict[str, subprocess.Popen[str]], question: str) -> None:
    for rival in rivals.values():
        assert rival.stdin is not None
        rival.stdin.write(f"{question}\n")
        rival.stdin.flush()


def answers(rivals: dict[str, subprocess.Popen[str]]) -> list[str]:
    lines = []
    for rival in rivals.values():
        assert rival.stdout is not None
        lines.append(rival.stdout.readline().strip())
    return lines


def test_a_late_worker_does_not_overwrite(url: str, spec: StudySpec, deployment: Deployment) -> None:
    """A worker that was believed dead finishes after another took its trial over, and finished it."""
    with open_store(url) as late, open_store(url) as other:
        study = late.create_study(spec, {}).id
        late.claim(study, "late", Seconds(0.0))
        late.add_trial(study, {}, deployment, Origin.SEARCH)
        late.start_attempt(study, 0, "late")
        other.claim(study, "other", Seconds(60.0))
        assert other.requeue_lost(study, "other") == [0]
        with pytest.raises(StoreError, match="is queued, not running"):
            late.finish_trial(study, 0, TrialOutcome.OOM)
        other.start_attempt(study, 0, "other")
        other.finish_trial(study, 0, TrialOutcome.FEASIBLE)
        with pytest.raises(StoreError, match="is done, not running"):
            late.finish_trial(study, 0, TrialOutcome.OOM)
        assert late.trials(study)[0].outcome is TrialOutcome.FEASIBLE
