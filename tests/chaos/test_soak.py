"""An hour under load: memory, descriptors and threads of every program stay flat, and every text is right.

``ENERGYOPT_SOAK_SECONDS`` sets another length; the first fifth is left to warming up.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.load import Load
from tests.chaos.programs import Program, Usage
from tests.chaos.promises import energy_is_conserved, no_block_is_lost, nothing_is_wrong

Start = Callable[..., Program]
MIB = 1 << 20


def watch(programs: Mapping[str, Program], seconds: float) -> dict[str, list[Usage]]:
    """What each holds, some two hundred times."""
    seen: dict[str, list[Usage]] = {name: [] for name in programs}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(max(seconds / 200, 0.25))
        for name, program in programs.items():
            assert program.alive, f"{name}: {program.said[-2000:]}"
            seen[name].append(program.usage())
    return seen


def thirds(values: Sequence[float]) -> tuple[float, float]:
    """Medians of the first and the last third, after the first fifth is left out."""
    warm = values[len(values) // 5 :]
    third = len(warm) // 3
    return statistics.median(warm[:third]), statistics.median(warm[-third:])


def is_flat(name: str, seen: Sequence[Usage], hours: float) -> None:
    """Growth of at most 1% and 8 MiB an hour in memory, of two descriptors and two threads."""
    first, last = thirds([one.resident for one in seen])
    descriptors, threads = thirds([one.descriptors for one in seen]), thirds([one.threads for one in seen])
    figure = f"{first / MIB:.1f} -> {last / MIB:.1f} MiB, descriptors {descriptors}, threads {threads}"
    print(f"{name}: {figure}")  # noqa: T201 - a soak exists to print its figures
    assert last - first <= max(0.01 * first, 8 * MIB) * max(hours, 0.5), name
    assert descriptors[1] - descriptors[0] <= 2, name
    assert threads[1] - threads[0] <= 2, name


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_everything_stays_flat(start: Start, serve: Start, driver: Any, tmp_path: Path) -> None:
    seconds = float(os.environ.get("ENERGYOPT_SOAK_SECONDS", "3600"))
    tier = ("--kv-disk-path", str(tmp_path / "tier"), "--kv-disk-gib-per-host", "0.002")
    engines = [serve(*tier, "--served-model-name", "tiny").ready(), serve("--served-model-name", "tiny").ready()]
    words = [word for one in engines for word in ("--backend", one.url)]
    front = start("router", *words, "--port").ready()
    database = ("--db", f"sqlite:///{tmp_path}/e.db")
    agent = start("agent", *database, "--port", environment=driver.environment).ready("/metrics")
    api = start("api", *database, "--workers", "0", "--out", str(tmp_path / "out"), "--port").ready()
    programs = {"engine with tiers": engines[0], "engine": engines[1], "router": front, "agent": agent, "api": api}
    with Load(front.url).learn() as load:
        seen = watch(programs, seconds)
        tally = load.fresh()
    print(f"{tally.same} right texts, {tally.refused} refused, slowest {tally.slowest:.2f} s")  # noqa: T201
    nothing_is_wrong(tally)
    assert tally.same > 0
    assert (tally.refused, tally.unreachable) == ({}, 0)
    for name in programs:
        is_flat(name, seen[name], seconds / 3600)
    for engine in engines:
        energy_is_conserved(engine.url, "energyopt_cpu_energy_joules_total", watts=400.0)
        no_block_is_lost(engine.url)
    for program in programs.values():
        assert program.end() == 0
