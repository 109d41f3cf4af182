"""The statements by which energy is written, on SQLite and PostgreSQL: upserts that a repetition does not change.

A row of a second replaces an older one only if it covers more of that second, so a process that was killed and begins
anew in the middle of a second cannot make a row worse. SQLite takes batches of tuples, PostgreSQL COPY into a
temporary table (measured: an order of magnitude above statements of values there).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from sqlalchemy import Connection, text

COLUMNS = (
    *("resolution", "at", "sensor_id", "nanojoules", "covered_us", "pieces"),
    *("watts_min", "watts_max", "doubt", "edge", "sources"),
)
_KEY = ("resolution", "at", "sensor_id")
_VALUES = [column for column in COLUMNS if column not in _KEY]
_UPSERT = (
    f"ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET "
    + ", ".join(f"{column} = excluded.{column}" for column in _VALUES)
    + " WHERE excluded.covered_us > energyopt_rollups.covered_us"
)
_INTO = f"INSERT INTO energyopt_rollups ({', '.join(COLUMNS)})"
_STAGE = "energyopt_stage"
# "WHERE true" tells SQLite's parser that ON belongs to the insert and not to a join.
_MINUTES = f"""
{_INTO}
SELECT 60, at / 60 * 60, sensor_id, SUM(nanojoules), SUM(covered_us), SUM(pieces), MIN(watts_min), MAX(watts_max),
  SUM(doubt), MAX(edge), MAX(sources & 1) + MAX(sources & 2) + MAX(sources & 4) + MAX(sources & 8)
FROM energyopt_rollups WHERE resolution = 1 AND at >= :start AND at < :end
GROUP BY at / 60 * 60, sensor_id
{_UPSERT}
"""

Row = Sequence[int | float]


class _Copy(Protocol):
    def write_row(self, row: Sequence[object]) -> None: ...


def write_seconds(connection: Connection, rows: Sequence[Row]) -> None:
    """Rows of one sensor and second at most once each."""
    if connection.dialect.name == "sqlite":
        marks = ", ".join("?" * len(COLUMNS))
        connection.exec_driver_sql(f"{_INTO} VALUES ({marks}) {_UPSERT}", [tuple(row) for row in rows])
        return
    stage = f"CREATE TEMPORARY TABLE IF NOT EXISTS {_STAGE} (LIKE energyopt_rollups) ON COMMIT DELETE ROWS"
    connection.exec_driver_sql(stage)
    driver = connection.connection.driver_connection
    assert driver is not None
    with driver.cursor() as cursor, cursor.copy(f"COPY {_STAGE} ({', '.join(COLUMNS)}) FROM STDIN") as copy:
        for row in rows:
            cast(_Copy, copy).write_row(row)
    connection.exec_driver_sql(f"{_INTO} SELECT {', '.join(COLUMNS)} FROM {_STAGE} {_UPSERT}")


def roll_minutes(connection: Connection, start: int, end: int) -> None:
    """Make the rows of the whole minutes from ``start`` to before ``end`` (Unix seconds) from those of their seconds.

    Sums stay exact. A minute whose seconds have passed their retention keeps its row: fewer seconds cover less.
    """
    connection.execute(text(_MINUTES), {"start": start, "end": end})


def newest(connection: Connection, resolution: int) -> int | None:
    """When the newest row of a resolution begins."""
    query = text("SELECT MAX(at) FROM energyopt_rollups WHERE resolution = :resolution")
    return connection.execute(query, {"resolution": resolution}).scalar()


def prune_rollups(connection: Connection, resolution: int, before: int, slice_seconds: int) -> bool:
    """Delete rows older than ``before``, at most ``slice_seconds`` of time at once; True if there is more."""
    oldest = connection.execute(
        text("SELECT MIN(at) FROM energyopt_rollups WHERE resolution = :resolution"), {"resolution": resolution}
    ).scalar()
    if oldest is None or int(oldest) >= before:
        return False
    until = min(before, int(oldest) + slice_seconds)
    delete = text("DELETE FROM energyopt_rollups WHERE resolution = :resolution AND at < :until")
    connection.execute(delete, {"resolution": resolution, "until": until})
    return until < before


def prune_chunks(connection: Connection, before: int) -> None:
    """Delete pieces that ended before the Unix second ``before``."""
    connection.execute(
        text("DELETE FROM energyopt_chunks WHERE start_us < :at AND end_us < :at"), {"at": before * 10**6}
    )
