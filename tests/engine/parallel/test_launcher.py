"""One dead or silent rank ends all of them, with a typed error and no process left; the ranks here do nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from energyopt.core.errors import EnergyoptError, EngineError, OutOfMemoryError
from engine.parallel.launcher import Launcher, Patience
from engine.parallel.memory import PAGE, SharedMemory
from engine.parallel.wire import Kind

ECHO = """import socket, os, sys
from engine.parallel.wire import Kind, receive, send, pack_error
from energyopt.core.errors import OutOfMemoryError
channel = socket.socket(fileno=inherited.socket_fd)
while True:
    kind, body = receive(channel)
    if kind is Kind.CLOSE:
        break
    if body == b"exit":
        sys.exit(7)
    if body == b"memory":
        send(channel, Kind.ERROR, pack_error(OutOfMemoryError("No room for it.")))
        sys.exit(1)
    send(channel, Kind.RESULT, body)
"""
NAMES = ("rank 0 (first)", "rank 1 (second)")
WITHIN = 5.0


def gone(pid: int) -> bool:
    """Whether no such process runs; one that waits to be reaped by somebody else does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def wait_until(condition: Callable[[], bool], seconds: float = WITHIN) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


@contextmanager
def launched(silence: float = 30.0) -> Iterator[Launcher]:
    memory = SharedMemory.create(PAGE)
    launcher = Launcher(NAMES, memory, program=ECHO, patience=Patience(silence=silence))
    try:
        launcher.send(Kind.STEP, b"hello")
        assert [launcher.receive(rank) for rank in range(2)] == [(Kind.RESULT, b"hello")] * 2
        launcher.started()
        yield launcher
    finally:
        launcher.close()
        memory.close()
        assert all(gone(pid) for pid in launcher.pids)


def test_ranks_answer_and_end_when_closed() -> None:
    with launched() as launcher:
        start = time.monotonic()
        launcher.close()
        assert time.monotonic() - start < WITHIN
        with pytest.raises(EngineError, match="closed"):
            launcher.receive(0)
        launcher.close()


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda launcher: os.kill(launcher.pids[1], signal.SIGKILL), r"rank 1 \(second\) was killed by SIGKILL"),
        (lambda launcher: launcher.send(Kind.STEP, b"exit", [1]), r"rank 1 \(second\) ended with exit code 7"),
    ],
    ids=["killed", "exits"],
)
def test_a_death_is_named_while_another_rank_is_waited_for(end: Callable[[Launcher], None], words: str) -> None:
    with launched() as launcher:
        start = time.monotonic()
        end(launcher)
        with pytest.raises(EngineError, match=words):
            launcher.receive(0)
        assert time.monotonic() - start < WITHIN
        assert wait_until(lambda: all(gone(pid) for pid in launcher.pids))
        with pytest.raises(EngineError, match=words):
            launcher.receive(1)
        with pytest.raises(EngineError, match=words):
            launcher.send(Kind.STEP, b"hello")


@pytest.mark.parametrize("waited", [0, 1])
def test_an_error_keeps_its_kind_whoever_is_waited_for(waited: int) -> None:
    with launched() as launcher:
        launcher.send(Kind.STEP, b"memory", [1])
        with pytest.raises(OutOfMemoryError, match=r"rank 1 \(second\): No room for it"):
            launcher.receive(waited)


def test_a_stopped_rank_is_an_error_in_time() -> None:
    with launched(silence=1.5) as launcher:
        os.kill(launcher.pids[0], signal.SIGSTOP)
        start = time.monotonic()
        with pytest.raises(EngineError, match=r"rank 0 \(first\) has shown no sign of life for 1.5 s"):
            launcher.receive(1)
        assert time.monotonic() - start < WITHIN
        assert wait_until(lambda: all(gone(pid) for pid in launcher.pids))


def test_a_rank_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    memory = SharedMemory.create(PAGE)
    with pytest.raises(EnergyoptError, match="could not be started"):
        Launcher(NAMES, memory, program=ECHO)
    memory.close()


PARENT = """import time
from engine.parallel.launcher import Launcher
from engine.parallel.memory import PAGE, SharedMemory
launcher = Launcher(("a", "b"), SharedMemory.create(PAGE), program=PROGRAM)
print(*launcher.pids, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("program", [ECHO, "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"])
def test_no_rank_outlives_a_killed_engine(program: str) -> None:
    """Neither one that waits for work nor one that is stopped."""
    script = f"PROGRAM = {program!r}\n{PARENT}"
    with subprocess.Popen([sys.executable, "-P", "-c", script], stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        pids = [int(word) for word in engine.stdout.readline().split()]
        assert len(pids) == 2
        engine.kill()
    assert wait_until(lambda: all(gone(pid) for pid in pids))
