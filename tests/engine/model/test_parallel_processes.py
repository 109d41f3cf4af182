"""Ranks that are processes: the tokens of one, and a death that ends the engine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from energyopt.core.config import EngineConfig
from energyopt.core.errors import EngineError
from engine.parallel.launcher import Launcher
from engine.parallel.memory import SharedMemory
from engine.parallel.runner import ParallelRunner
from tests.engine.model.ranks import drive, spread


class Hired:
    """Starts processes and remembers their ids."""

    def __init__(self) -> None:
        self.pids: tuple[int, ...] = ()

    def __call__(self, names: Sequence[str], memory: SharedMemory) -> Launcher:
        launcher = Launcher(names, memory)
        self.pids = launcher.pids
        return launcher


@pytest.fixture(scope="module")
def running(six_layers: EngineConfig) -> Iterator[tuple[ParallelRunner, EngineConfig, Hired]]:
    """Two processes, for the tests that need real ones; the last of them kills one."""
    hired = Hired()
    runner, changed = spread(six_layers, hired, tp=2)
    yield runner, changed, hired
    runner.close()


def test_processes_give_the_tokens_of_one(
    running: tuple[ParallelRunner, EngineConfig, Hired], six_layers_answers: list[list[int]]
) -> None:
    runner, changed, hired = running
    assert len(hired.pids) == 2
    assert drive(runner, changed) == six_layers_answers


def test_a_killed_process_ends_the_engine_within_seconds(
    running: tuple[ParallelRunner, EngineConfig, Hired],
) -> None:
    runner, changed, hired = running
    os.kill(hired.pids[1], signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(EngineError, match=r"rank 1 .* was killed by SIGKILL"):
        drive(runner, changed)
    runner.close()
    assert time.monotonic() - start < 5
    assert not any(Path(f"/proc/{pid}").exists() for pid in hired.pids)
