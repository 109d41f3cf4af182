"""The agent on a bad day of its driver, its database and its machine: counters never go back, no joule is made up."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import create_engine, text

from tests.chaos.faults import SmallDisk, WallClock
from tests.chaos.programs import Program, within

Start = Callable[..., Program]
ENERGY = "energyopt_gpu_energy_joules_total"
pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]


def agent(start: Start, driver: Any, *words: str, **extra: str) -> Program:
    environment = {**driver.environment, **extra}
    return start("agent", *words, "--port", environment=environment).ready("/metrics")


def energy(program: Program) -> dict[str, float]:
    """Joules by GPU, of those that have a reading."""
    page = httpx.get(f"{program.url}/metrics", timeout=30).text
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    mine = [sample for sample in samples if sample.name == ENERGY and sample.labels["scope"] == "gpu"]
    return {sample.labels["gpu_uuid"]: sample.value for sample in mine}


def until_it_counts(
    program: Program, since: dict[str, float], gpus: int = 2, seconds: float = 60.0
) -> dict[str, float]:
    for _ in within(seconds):
        now = energy(program)
        if len(now) == gpus and all(value > since.get(gpu, 0.0) for gpu, value in now.items()):
            return now
    raise AssertionError(f"after {since} it counts no more: {energy(program)}, {program.said[-2000:]}")


def equals_truth(program: Program, driver: Any, first: dict[str, float], began: float) -> None:
    """Since ``first``, taken when the driver had counted ``began``, each GPU used what the stub's boards did."""
    time.sleep(2.0)
    before = driver.joules()
    now = energy(program)
    after = driver.joules()
    slack = 300.0 * 1.5  # a period of sampling and a tick on either side, on a busy machine
    for gpu, value in now.items():
        assert before - began - slack <= value - first[gpu] <= after - began + slack, (gpu, value - first[gpu])


@pytest.mark.parametrize("fault", ["slow", "one GPU lost", "driver gone", "stopped"])
def test_a_fault_of_the_driver_neither_makes_nor_loses_energy(start: Start, driver: Any, fault: str) -> None:
    program = agent(start, driver)
    first = until_it_counts(program, {})
    began, gpus = driver.joules(), driver.state.gpus[:2]
    hurt = gpus[:1] if fault == "one GPU lost" else gpus
    if fault == "slow":
        for gpu in hurt:
            gpu.fail("slow_ms", 500)
    elif fault == "stopped":
        program.send(signal.SIGSTOP)
    else:
        for gpu in hurt:
            for call in ("handle", "energy", "power", "fields"):
                gpu.fail(call, 15 if fault == "one GPU lost" else 999)  # NVML_ERROR_GPU_IS_LOST, _UNKNOWN
        driver.state.init_rc = 999 if fault == "driver gone" else 0
    time.sleep(6.0)
    if fault == "one GPU lost":
        until_it_counts(program, {gpu: value for gpu, value in energy(program).items() if "GPU-00000001" in gpu})
    driver.state.init_rc = 0
    for gpu in hurt:
        for call in ("slow_ms", "handle", "energy", "power", "fields"):
            gpu.fail(call, 0)
    program.send(signal.SIGCONT)
    middle = until_it_counts(program, first)
    until_it_counts(program, middle)
    equals_truth(program, driver, first, began)
    assert program.end() == 0


def test_killed_and_started_again_its_counters_begin_anew_and_count(start: Start, driver: Any) -> None:
    program = agent(start, driver)
    until_it_counts(program, {})
    for _ in range(2):
        program.kill()
        program.start().ready("/metrics")
        first, began = until_it_counts(program, {}), driver.joules()
        equals_truth(program, driver, first, began)
    assert program.end() == 0


def test_the_clock_on_the_wall_jumps(start: Start, driver: Any, wall_clock: WallClock) -> None:
    program = agent(start, driver, **wall_clock.environment)
    first, began = until_it_counts(program, {}), driver.joules()
    for jump in (86_400, -86_400, 0):
        wall_clock.jump(jump)
        until_it_counts(program, energy(program))
        equals_truth(program, driver, first, began)
    assert program.end() == 0


def rows(url: str) -> list[tuple[int, int, float]]:
    """Sensor, second, joules."""
    engine = create_engine(url)
    with engine.connect() as connection:
        wanted = "SELECT sensor_id, at, nanojoules FROM energyopt_rollups WHERE resolution = 1 ORDER BY 1, 2"
        result = [(sensor, at, nanojoules / 1e9) for sensor, at, nanojoules in connection.execute(text(wanted))]
    engine.dispose()
    return result


def test_its_database_dies_and_comes_back_with_nothing_lost(start: Start, driver: Any, own_postgres: Any) -> None:
    program = agent(start, driver, "--db", own_postgres.url)
    until_it_counts(program, {})
    time.sleep(6.0)
    own_postgres.kill()
    time.sleep(6.0)
    until_it_counts(program, energy(program))
    own_postgres.start()
    time.sleep(25.0)
    assert program.end() == 0
    _no_gap(rows(own_postgres.url.replace("postgresql://", "postgresql+psycopg://")))


def test_its_disk_is_full_for_a_while(start: Start, driver: Any, small_disk: SmallDisk) -> None:
    program = agent(start, driver, "--db", f"sqlite:///{small_disk.folder}/energy.db")
    until_it_counts(program, {})
    time.sleep(6.0)
    small_disk.fill()
    time.sleep(8.0)
    until_it_counts(program, energy(program))
    small_disk.empty()
    time.sleep(25.0)
    assert program.end() == 0
    _no_gap(rows(f"sqlite:///{small_disk.folder}/energy.db"))


def _no_gap(found: list[tuple[int, int, float]]) -> None:
    """Every second between the first and the last has a row, and 300 J in it."""
    sensors = {sensor for sensor, _, _ in found}
    assert len(sensors) >= 2
    for sensor in sensors:
        mine = [(at, joules) for number, at, joules in found if number == sensor][1:-1]
        assert len(mine) > 20, f"{len(mine)} rows: nothing was proven"
        assert [at for at, _ in mine] == list(range(mine[0][0], mine[-1][0] + 1))
        assert sum(joules for _, joules in mine) == pytest.approx(300.0 * len(mine), rel=0.03)
