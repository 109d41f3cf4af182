"""Two ranks in processes: microseconds of a sum through shared memory and by gloo, in turns: wall and this process's
processor time. Prints JSON."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import torch

from engine.parallel.memory import Arena, SharedMemory
from engine.parallel.ports import Collective
from engine.parallel.process_group import GroupCollective, gloo_group
from engine.parallel.shared import SharedCollective

ROUNDS, EACH = 8, 150


def main(folder: Path) -> None:
    """The first process is rank 0 and prints; a core for each and priority over others, where that is allowed."""
    torch.set_num_threads(1)
    arena = Arena()
    region = SharedCollective.reserve(arena, 2)
    memory = SharedMemory.create(arena.size)
    SharedCollective.initialize(memory, region, 2)
    child = os.fork()
    rank, cores, alone = (0 if child else 1), sorted(os.sched_getaffinity(0)), False
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        alone = True
    ends: dict[str, Collective] = {
        "shared": SharedCollective(memory, region, rank, 2),
        "gloo": GroupCollective(gloo_group(folder / "meeting", "bench", rank, 2)),
    }
    rounds = [{name: timed(end) for name, end in ends.items()} for _ in range(ROUNDS)]
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    medians = {
        f"{name} {kind}": sorted(found[name][at] for found in rounds)[ROUNDS // 2] * 1e6
        for name in ends
        for at, kind in enumerate(("wall", "cpu"))
    }
    print(json.dumps({**medians, "alone": alone}))  # noqa: T201 - the bench reads it


def timed(end: Collective) -> tuple[float, float]:
    """Seconds of one sum of 16 x 576 float32, wall and processor."""
    part = torch.zeros(16, 576)
    end.all_reduce(part)
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(EACH):
        end.all_reduce(part)
    return (time.perf_counter() - wall) / EACH, (time.process_time() - cpu) / EACH


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else name))
