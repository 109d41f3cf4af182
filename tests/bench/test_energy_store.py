"""An hour of ten times the design load, 8 sensors at 100 Hz, into both databases: pace, queue, memory, bytes.

Prints the ratio to real time; a queue or a memory that grows with the hour, or one lost piece, fails it.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from energyopt.core.clock import FakeClock
from energyopt.core.results import Scope, Source
from energyopt.core.units import Joules, Seconds
from energyopt.store.database import open_engine
from energyopt.store.energy_history import EnergyHistory
from energyopt.store.energy_writer import SqlEnergyWriter
from telemetry.ports import EnergyChunk, SensorId
from tests.bench.figures import Report

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
RATE, SENSORS = 100, [SensorId(f"GPU-{number}", Scope.GPU) for number in range(8)]


def second(at: int) -> Iterator[EnergyChunk]:
    """A second of all sensors, as a publisher hands it over."""
    for sensor in SENSORS:
        for tick in range(RATE):
            start = at + tick / RATE
            yield EnergyChunk(
                sensor=sensor,
                start=Seconds(start),
                end=Seconds(start + 1 / RATE),
                date=BEGIN + timedelta(seconds=start),
                joules=Joules(3.0),
                error=Joules(0.5),
                edge=Joules(0.5),
                source=Source.COUNTER,
            )


@pytest.mark.bench
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seconds", [3600])
def test_an_hour_of_ten_times_the_load(tmp_path: Path, seconds: int, figure: Report) -> None:
    engine, name = open_engine(str(tmp_path / "energy.db"))
    writer = SqlEnergyWriter(engine, FakeClock(date=BEGIN), name, "host-1")
    writer.begin_run("bench")
    begun, waits, memory = time.perf_counter(), 0, []
    for at in range(seconds):
        writer.accept(list(second(at)))
        while writer.stats.queued > 10 * RATE * len(SENSORS):  # faster than real time: let the writer set the pace
            waits += 1
            time.sleep(0.005)
        if at % (seconds // 6) == 0:
            memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
    writer.close(600)
    taken, stats = time.perf_counter() - begun, writer.stats
    start = BEGIN - timedelta(seconds=1)
    points = EnergyHistory(engine, name).energy(start, BEGIN + timedelta(seconds=seconds), resolution=60)
    engine.dispose()
    size = (tmp_path / "energy.db").stat().st_size
    pieces = seconds * RATE * len(SENSORS)
    figures = (
        f"\n{pieces:,} pieces in {taken:.1f} s: {seconds / taken:.1f} x real time, {pieces / taken:,.0f} pieces/s",
        f"queue at most {stats.most_queued:,}, waited for it {waits} times",
        f"peak memory over the hour {memory} MiB; {size / 1e6:.1f} MB on disk",
    )
    print("\n".join(figures))  # noqa: T201 - a bench exists to print its figures
    figure("energy store: 8 sensors at 100 Hz, pace", seconds / taken, "x real time", "over 1")
    figure("energy store: an hour of 8 sensors at 100 Hz on disk", size / 1e6, "MB")
    assert stats.accepted == pieces
    assert sum(point.joules for point in points) == pytest.approx(3.0 * pieces, abs=1e-6)
    assert stats.rows_lost == 0
    assert memory[-1] < 1.3 * memory[1] + 20
