"""An engine under load on a bad day: same texts, no hang, no block lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.chaos.faults import Memory, SmallDisk, WallClock, corrupt
from tests.chaos.load import Load
from tests.chaos.programs import Program
from tests.chaos.promises import energy_is_conserved, it_answers_again, metrics, no_block_is_lost
from tests.mooncake import MooncakePool

Start = Callable[..., Program]
SENSOR, WATTS = "energyopt_cpu_energy_joules_total", 400.0


def disk(folder: Path, gib: float = 0.002) -> tuple[str, ...]:
    return ("--kv-disk-path", str(folder), "--kv-disk-gib-per-host", str(gib))


def forget(engine: Program) -> None:
    """Empty the device's prefix cache, so that the next request asks the tiers."""
    assert httpx.post(f"{engine.url}/reset_prefix_cache", timeout=30).status_code == 200


def test_stopped_for_a_while_and_its_files_corrupted(serve: Start, tmp_path: Path) -> None:
    """The short one, for every change: SIGSTOP, then rotten cache files, under load."""
    engine = serve(*disk(tmp_path / "tier")).ready()
    with Load(engine.url).learn() as load:
        engine.send(signal.SIGSTOP)
        time.sleep(2.0)
        engine.send(signal.SIGCONT)
        it_answers_again(load, engine)
        assert corrupt(tmp_path / "tier") > 0, "no block reached the disk: nothing was proven"
        forget(engine)
        it_answers_again(load, engine)
        energy_is_conserved(engine.url, SENSOR, WATTS)
    no_block_is_lost(engine.url)
    assert engine.end() == 0


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_killed_under_load_it_comes_back_with_its_disk(serve: Start, tmp_path: Path) -> None:
    engine = serve(*disk(tmp_path / "tier")).ready()
    with Load(engine.url).learn() as load:
        it_answers_again(load, engine)
        for _ in range(2):
            engine.kill()
            time.sleep(1.0)
            engine.start().ready()
            meanwhile = it_answers_again(load, engine)
            assert meanwhile.unreachable > 0, "no client saw the kill: nothing was proven"
    assert metrics(engine.url)["energyopt_kv_tier_loaded_blocks_total"] > 0, "the disk tier came back cold"
    no_block_is_lost(engine.url)
    assert engine.end() == 0


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_its_disk_fails_and_comes_back(serve: Start, small_disk: SmallDisk, fault: str) -> None:
    engine = serve(*disk(small_disk.folder / "tier")).ready()
    with Load(engine.url).learn() as load:
        it_answers_again(load, engine)
        small_disk.fill() if fault == "full" else small_disk.read_only(on=True)
        for _ in range(2):
            forget(engine)
            during = it_answers_again(load, engine)
            assert during.refused == {}, "a client was told of a disk that is only a cache"
        small_disk.empty() if fault == "full" else small_disk.read_only(on=False)
        it_answers_again(load, engine)
    no_block_is_lost(engine.url)
    assert engine.end() == 0


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_memory_ends_while_it_starts(serve: Start, memory: Memory, tmp_path: Path) -> None:
    """The kernel kills it; with room it starts in the same place and answers."""
    engine = serve(*disk(tmp_path / "tier"), before=memory.before)
    assert engine.process.wait(120) == -signal.SIGKILL, engine.said
    memory.allow(8 << 30)
    engine.start().ready()
    with Load(engine.url).learn() as load:
        it_answers_again(load, engine)
    no_block_is_lost(engine.url)
    assert engine.end() == 0


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_the_clock_on_the_wall_jumps(serve: Start, wall_clock: WallClock) -> None:
    """Nothing that is measured or waited for may follow it: neither a timeout nor a joule."""
    engine = serve(environment={**os.environ, **wall_clock.environment}).ready()
    with Load(engine.url).learn() as load:
        for jump in (86_400, -86_400, 0):
            before, began = metrics(engine.url), time.monotonic()
            wall_clock.jump(jump)
            meanwhile = it_answers_again(load, engine)
            assert meanwhile.refused == {}
            assert meanwhile.unreachable == 0
            after, took = energy_is_conserved(engine.url, SENSOR, WATTS), time.monotonic() - began
            assert 0 <= after[SENSOR] - before[SENSOR] < WATTS * (took + 1), "a jump of the clock was counted"
    no_block_is_lost(engine.url)
    assert engine.end() == 0


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_the_pool_it_shares_dies_and_comes_back(serve: Start, mooncake_pool: MooncakePool) -> None:
    """A master that is gone costs time, never a client's answer."""
    engine = serve("--kv-shared-url", mooncake_pool.url, "--kv-shared-gib-per-host", "0.05").ready()
    with Load(engine.url).learn() as load:
        it_answers_again(load, engine)
        for _ in range(2):
            mooncake_pool.kill()
            forget(engine)
            during = it_answers_again(load, engine)
            assert during.refused == {}, "a client was told of a pool that is only a cache"
            mooncake_pool.start()
            forget(engine)
            it_answers_again(load, engine)
    assert metrics(engine.url)["energyopt_kv_tier_stored_blocks_total"] > 0, "no block reached the pool"
    no_block_is_lost(engine.url)
    assert engine.end() == 0
