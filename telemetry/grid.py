"""Carbon intensity of the grid over time: one number, or a CSV file of them.

The file has the columns ``time`` (ISO 8601 with a zone, growing) and ``grams_per_kwh``; a row holds until the next
one, the last for as long as the one before it did. Outside the file nothing is known.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from energyopt.core.errors import ConfigError
from energyopt.core.footprint import JOULES_PER_KILOWATT_HOUR

COLUMNS = ("time", "grams_per_kwh")
MAX_BYTES = 64 << 20
MAX_INTENSITY = 5000.0
"""Grams per kilowatt hour above every grid on record; more is another unit."""


class Grid(Protocol):
    """Grams of CO2e per joule."""

    def mean(self, start: datetime, end: datetime) -> float | None:
        """Mean over the time from ``start`` to ``end`` (or at ``start``, if they are equal); None if any of it is
        not known."""
        ...


class ConstantGrid:
    """One intensity for all time. Raises ConfigError for one that no grid has."""

    def __init__(self, grams_per_kwh: float) -> None:
        self._grams_per_joule = _per_joule(grams_per_kwh, f"{grams_per_kwh} g/kWh")

    def mean(self, start: datetime, end: datetime) -> float | None:
        return self._grams_per_joule


class SeriesGrid:
    """Intensity that changes at given moments."""

    def __init__(self, times: Sequence[datetime], grams_per_joule: Sequence[float]) -> None:
        if len(times) != len(grams_per_joule) or len(times) < 2:
            raise ConfigError("A series of grid intensities needs at least two rows.")
        self._starts = [moment.timestamp() for moment in times]
        self._values = list(grams_per_joule)
        self._end = self._starts[-1] + (self._starts[-1] - self._starts[-2])

    def mean(self, start: datetime, end: datetime) -> float | None:
        first, last = start.timestamp(), end.timestamp()
        if not self._starts[0] <= first <= last <= self._end:
            return None
        index = bisect_right(self._starts, first) - 1
        if first == last:
            return self._values[index]
        total, at = 0.0, first
        while at < last:
            until = min(last, self._starts[index + 1] if index + 1 < len(self._starts) else self._end)
            total += self._values[index] * (until - at)
            at, index = until, index + 1
        return total / (last - first)


def read_grid(path: Path) -> SeriesGrid:
    """The series in a CSV file. Raises ConfigError that names the line."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path} is larger than {MAX_BYTES >> 20} MiB.")
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(_rows(path, csv.DictReader(file)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from error
    return SeriesGrid([time for time, _ in rows], [value for _, value in rows])


def _rows(path: Path, reader: csv.DictReader[str]) -> Iterator[tuple[datetime, float]]:
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise ConfigError(f"{path} must begin with the columns {','.join(COLUMNS)}.")
    last: datetime | None = None
    for row in reader:
        where = f"{path}, line {reader.line_num}"
        try:
            time, grams = datetime.fromisoformat(row["time"] or ""), float(row["grams_per_kwh"] or "")
        except ValueError as error:
            raise ConfigError(f"{where}: {error}.") from error
        if time.tzinfo is None or (last is not None and time <= last):
            raise ConfigError(f"{where}: times must grow and name their zone, such as 2026-01-31T12:00:00Z.")
        last = time
        yield time.astimezone(UTC), _per_joule(grams, where)


def _per_joule(grams_per_kwh: float, where: str) -> float:
    if not (math.isfinite(grams_per_kwh) and 0 <= grams_per_kwh <= MAX_INTENSITY):
        raise ConfigError(f"{where}: a grid intensity is between 0 and {MAX_INTENSITY:g} g/kWh.")
    return grams_per_kwh / JOULES_PER_KILOWATT_HOUR
