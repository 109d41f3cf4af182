"""Energy over time as it was kept: by device, window and resolution. Reads only; knows no sensor.

Sums are exact over any window that begins and ends at whole seconds (from minutes: whole minutes). Power comes with
how much of the time is known; time without a row is unknown, not 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

from sqlalchemy import Connection, Engine, bindparam, text
from sqlalchemy.exc import SQLAlchemyError

from energyopt.core.errors import ConfigError, NotFoundError
from energyopt.core.results import Source
from energyopt.core.units import Joules, Seconds, Watts

from .chunk_codec import decode_chunk
from .energy_json import points_json
from .energy_rows import MICROSECONDS, NANOJOULES, SOURCE_BITS
from .refusal import refusal

MAX_POINTS = 50_000
MAX_RESOLUTION = 366 * 86_400
MINUTE = 60


@dataclass(frozen=True, slots=True)
class SensorRecord:
    """A sensor that energy is kept of, and since when until when there are rows of it (Unix seconds)."""

    host: str
    device: str
    scope: str


@dataclass(frozen=True, slots=True)
class EnergyPoint:
    """Energy of one sensor over ``resolution`` seconds from ``at``, of which ``covered`` are known.

    ``watts`` is the mean over the covered time, ``watts_min`` and ``watts_max`` those of the pieces within it.
    """

    host: str
    device: str
    scope: str
    at: datetime
    resolution: int
    joules: Joules
    error: Joules
    covered: Seconds
    watts: Watts | None
    watts_min: Watts
    watts_max: Watts
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class ExactPiece:
    """One settled piece of a run, to the microsecond and the nanojoule."""

    at: datetime
    seconds: Seconds
    joules: Joules
    source: Source


class EnergyHistory:
    """Answers from a database at this version's revision; ``name`` is how messages call it. Thread-safe."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._name = name

    def sensors(self) -> list[SensorRecord]:
        """Every sensor that was ever kept."""
        with self._reading() as connection:
            rows = connection.execute(
                text("SELECT host, device, scope FROM energyopt_sensors ORDER BY host, device, scope")
            )
            return [SensorRecord(*row) for row in rows]

    def energy(
        self,
        start: datetime,
        end: datetime,
        *,
        resolution: int = MINUTE,
        device: str | None = None,
        host: str | None = None,
        limit: int = MAX_POINTS,
    ) -> list[EnergyPoint]:
        """Points in order of time, each over ``resolution`` seconds counted from 1970, from those that begin in the
        window.

        Multiples of 60 are made from rows of minutes, others from rows of seconds, which are kept for less time.
        Raises ConfigError for a window without a zone or end, a resolution below 1, or more points than ``limit``.
        """
        rows, sensors = self._points(start, end, resolution, device, host, limit)
        return [_point(row, sensors[row[0]], resolution) for row in rows]

    def energy_json(
        self,
        start: datetime,
        end: datetime,
        *,
        resolution: int = MINUTE,
        device: str | None = None,
        host: str | None = None,
        limit: int = MAX_POINTS,
    ) -> bytes:
        """A JSON list of what ``energy`` returns, in a fraction of its time. Raises what that raises."""
        rows, sensors = self._points(start, end, resolution, device, host, limit)
        return f"[{','.join(points_json(rows, sensors, resolution))}]".encode()

    def _points(
        self, start: datetime, end: datetime, resolution: int, device: str | None, host: str | None, limit: int
    ) -> tuple[Sequence[Sequence[Any]], dict[int, tuple[str, str, str]]]:
        """The rows of a window in order of time and name, and who their sensors are."""
        low, high = _whole_seconds(start), _whole_seconds(end)
        if high < low or not 1 <= resolution <= MAX_RESOLUTION or not 1 <= limit <= MAX_POINTS:
            raise ConfigError(
                f"A window of {high - low} s in steps of {resolution} s is not allowed: it must not end before it "
                f"starts, steps are 1 to {MAX_RESOLUTION} s, points at most {MAX_POINTS}."
            )
        whole = resolution in (1, MINUTE)
        with self._reading() as connection:
            sensors = _sensors(connection, device, host)
            values: dict[str, object] = {
                "base": 1 if resolution % MINUTE else MINUTE,
                "step": resolution,
                "start": low,
                "end": high,
                "limit": limit + 1,
                "ids": list(sensors),
            }
            query = text(_ROWS if whole else _SUMS).bindparams(bindparam("ids", expanding=True))
            found: Sequence[Sequence[Any]] = connection.execute(query, values).all()
        rows = found if whole else _merged(found)
        if len(rows) > limit:
            raise ConfigError(f"The window holds more than {limit} points: ask for a shorter one, or longer steps.")
        rank = {number: place for place, number in enumerate(sorted(sensors, key=sensors.__getitem__))}
        return sorted(rows, key=lambda row: row[1] * len(rank) + rank[row[0]]), sensors

    def pieces(self, run: str, device: str, scope: str, *, limit: int = 10 * MAX_POINTS) -> list[ExactPiece]:
        """Every piece of one sensor within a run, in order. Raises NotFoundError if none was kept."""
        query = text(
            "SELECT c.payload, c.pieces FROM energyopt_chunks AS c JOIN energyopt_sensors AS s ON s.id = c.sensor_id "
            "WHERE c.run = :run AND s.device = :device AND s.scope = :scope ORDER BY c.start_us"
        )
        found: list[ExactPiece] = []
        with self._reading() as connection:
            for payload, count in connection.execute(query, {"run": run, "device": device, "scope": scope}):
                found.extend(_exact(bytes(payload), int(count)))
                if len(found) > limit:
                    raise ConfigError(f"The run {run!r} holds more than {limit} pieces of {device}.")
        if not found:
            raise NotFoundError(f"No energy of {device} ({scope}) was kept for the run {run!r}.")
        return found

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        try:
            with self._engine.connect() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise refusal(error, self._name) from error


_WHERE = "FROM energyopt_rollups WHERE resolution = :base AND at >= :start AND at < :end AND sensor_id IN :ids"
_ROWS = f"""
SELECT sensor_id, at, nanojoules, covered_us, watts_min, watts_max, doubt, edge, sources {_WHERE} LIMIT :limit
"""
_SUMS = f"""
SELECT sensor_id, at / :step * :step AS begins, CAST(SUM(nanojoules) AS BIGINT), CAST(SUM(covered_us) AS BIGINT),
  MIN(watts_min), MAX(watts_max), SUM(doubt), MAX(edge), sources
{_WHERE} GROUP BY begins, sensor_id, sources LIMIT :limit
"""
"""Sums over whole steps; a row alone where it is a step already, which is what months of minutes are read by."""


def _sensors(connection: Connection, device: str | None, host: str | None) -> dict[int, tuple[str, str, str]]:
    """Host, device and scope of each sensor that is asked for."""
    given = {name: value for name, value in (("device", device), ("host", host)) if value is not None}
    where = "".join(f" AND {name} = :{name}" for name in given)
    query = text(f"SELECT id, host, device, scope FROM energyopt_sensors WHERE 1 = 1{where}")
    return {row[0]: (row[1], row[2], row[3]) for row in connection.execute(query, given)}


def _merged(rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """One row a sensor and step: those whose pieces had other sources come apart, as SQL has no sum of sets."""
    found: dict[tuple[int, int], tuple[Any, ...]] = {}
    for row in rows:
        one: tuple[Any, ...] = tuple(row)
        key = one[0], one[1]
        other = found.get(key)
        if other is not None:
            nanojoules, covered, low, high, doubt, edge, bits = one[2:]
            sums = (other[2] + nanojoules, other[3] + covered, min(other[4], low), max(other[5], high))
            one = (*key, *sums, other[6] + doubt, max(other[7], edge), other[8] | bits)
        found[key] = one
    return list(found.values())


@cache
def _sources(bits: int) -> tuple[Source, ...]:
    return tuple(source for source, bit in SOURCE_BITS.items() if bits & bit)


def _point(row: Sequence[Any], sensor: tuple[str, str, str], resolution: int) -> EnergyPoint:
    _, begins, nanojoules, covered_us, low, high, doubt, edge, bits = row
    host, device, scope = sensor
    joules, covered = nanojoules / NANOJOULES, covered_us / MICROSECONDS
    return EnergyPoint(
        host=host,
        device=device,
        scope=scope,
        at=datetime.fromtimestamp(begins, UTC),
        resolution=resolution,
        joules=Joules(joules),
        error=Joules(doubt + edge),
        covered=Seconds(covered),
        watts=Watts(joules / covered) if covered > 0 else None,
        watts_min=Watts(low),
        watts_max=Watts(high),
        sources=_sources(bits),
    )


def _exact(payload: bytes, count: int) -> Iterator[ExactPiece]:
    by_bit = {bit: source for source, bit in SOURCE_BITS.items()}
    for piece in decode_chunk(payload, count):
        yield ExactPiece(
            at=datetime.fromtimestamp(piece.start_us / MICROSECONDS, UTC),
            seconds=Seconds(piece.length_us / MICROSECONDS),
            joules=Joules(piece.nanojoules / NANOJOULES),
            source=by_bit[piece.source],
        )


def _whole_seconds(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise ConfigError(f"The moment {moment} is not allowed: it must name its time zone.")
    return -int(-moment.timestamp() // 1)
