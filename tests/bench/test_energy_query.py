"""``/v1/energy`` over a month: 30 days of eight GPUs, kept by the minute, on both databases."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from energyopt.store.database import open_engine
from energyopt.store.energy_history import EnergyHistory
from energyopt.store.energy_sql import write_seconds
from tests.bench.figures import Report

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]
BEGIN, DAYS, SENSORS = datetime(2026, 1, 1, tzinfo=UTC), 30, 8
MINUTES = DAYS * 24 * 60
LIMIT = 0.5


@pytest.fixture(params=["sqlite", "postgresql"])
def history(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EnergyHistory]:
    url = f"sqlite:///{tmp_path}/e.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    engine, name = open_engine(url)
    start = int(BEGIN.timestamp())
    with engine.execution_options(sqlite_begin="IMMEDIATE").begin() as connection:
        for number in range(SENSORS):
            connection.exec_driver_sql(
                f"INSERT INTO energyopt_sensors (host, device, scope) VALUES ('h', 'GPU-{number}', 'gpu')"
            )
        ids = [row[0] for row in connection.exec_driver_sql("SELECT id FROM energyopt_sensors ORDER BY id")]
        for day in range(DAYS):
            rows = [
                (60, start + 60 * minute, one, 18_000 * 10**9 + minute, 60_000_000, 600, 250.0, 350.0, 30.0, 0.5, 1)
                for minute in range(day * 1440, (day + 1) * 1440)
                for one in ids
            ]
            write_seconds(connection, rows)
    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM ANALYZE energyopt_rollups")
    yield EnergyHistory(engine, name)
    engine.dispose()


def test_a_month_of_eight_devices(history: EnergyHistory, figure: Report) -> None:
    end = BEGIN + timedelta(days=DAYS)
    asked = {
        "month, all devices, an hour a point": (BEGIN, end, 3600, None),
        "month, all devices, 10 minutes a point": (BEGIN, end, 600, None),
        "month, one device, a minute a point": (BEGIN, end, 60, "GPU-3"),
        "four days, all devices, a minute a point": (BEGIN, BEGIN + timedelta(days=4), 60, None),
    }
    best: dict[str, float] = {}
    kind = "PostgreSQL" if "postgresql" in history._name else "SQLite"
    for name, (start, until, resolution, device) in asked.items():
        took, cpu = list[float](), list[float]()
        for _ in range(5):
            begun, busy = time.perf_counter(), time.process_time()
            body = history.energy_json(start, until, resolution=resolution, device=device)
            took.append(time.perf_counter() - begun)
            cpu.append(time.process_time() - busy)
        print(  # noqa: T201 - a bench exists to print its figures
            f"{history._name[-20:]} {name}: {body.count(b'watts_min')} points, {len(body) >> 10} KiB, "
            f"best {min(took) * 1e3:.0f} ms, worst {max(took) * 1e3:.0f} ms, "
            f"of this process's CPU {min(cpu) * 1e3:.0f} ms; load {os.getloadavg()[0]:.1f}"
        )
        assert len(body) > 2
        best[name] = min(took)
    for name, seconds in best.items():
        figure(f"/v1/energy, {kind}: {name}", 1e3 * seconds, "ms", f"under {1e3 * LIMIT:g}")
    assert max(best.values()) < LIMIT, best
