"""Rows as JSON straight away are what their points are as JSON."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic_core import from_json, to_json

from energyopt.store.database import open_engine
from energyopt.store.energy_history import EnergyHistory
from energyopt.store.energy_sql import write_seconds

BEGIN = datetime(2026, 1, 31, 23, 58, tzinfo=UTC)
INFINITE = float("inf")


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_both_say_the_same(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/e.db" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    engine, name = open_engine(url)
    history = EnergyHistory(engine, name)
    start = int(BEGIN.timestamp())
    with engine.execution_options(sqlite_begin="IMMEDIATE").begin() as connection:
        for number, device in enumerate(('GPU "b"', "GPU-ä")):
            connection.exec_driver_sql(
                f"INSERT INTO energyopt_sensors (id, host, device, scope) VALUES ({2 - number}, 'h', '{device}', 'gpu')"
            )
        rows = [
            (
                60,
                start + 60 * minute,
                one,
                10**9 * minute + one,
                10**6 * minute,
                1,
                1e-9,
                350.0,
                doubt,
                0.5,
                minute % 16,
            )
            for minute in range(5)
            for one, doubt in ((1, 0.25), (2, INFINITE if minute == 3 else 1e300))
        ]
        write_seconds(connection, rows)
    end = BEGIN + timedelta(hours=1)
    for resolution in (60, 120, 3600):
        points = history.energy(BEGIN, end, resolution=resolution)
        assert [point.device for point in points[:2]] == ['GPU "b"', "GPU-ä"]
        slow = from_json(to_json(points, inf_nan_mode="strings"))
        assert from_json(history.energy_json(BEGIN, end, resolution=resolution)) == slow
    assert any(point.watts is None for point in history.energy(BEGIN, end))
    assert history.energy_json(BEGIN, end, device="another") == b"[]"
    engine.dispose()
