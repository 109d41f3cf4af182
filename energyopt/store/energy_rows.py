"""From pieces of settled energy to rows of whole seconds: sums in whole nanojoules, nothing lost at an edge."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol

from energyopt.core.results import Scope, Source

NANOJOULES = 1_000_000_000
MICROSECONDS = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
SOURCE_BITS = {source: 1 << position for position, source in enumerate(Source)}


class SensorLike(Protocol):
    """Identity of a physical sensor."""

    @property
    def device(self) -> str: ...
    @property
    def scope(self) -> Scope: ...


class Piece(Protocol):
    """Energy of one sensor between two moments, within one UTC second; telemetry's EnergyChunk has this shape."""

    @property
    def sensor(self) -> SensorLike: ...
    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...
    @property
    def date(self) -> datetime: ...
    @property
    def joules(self) -> float: ...
    @property
    def error(self) -> float: ...
    @property
    def edge(self) -> float: ...
    @property
    def source(self) -> Source: ...


class Place(NamedTuple):
    """A sensor's name in the database."""

    device: str
    scope: str


class Packed(NamedTuple):
    """A piece in whole numbers: microseconds since 1970, their number, nanojoules, and a bit for the source."""

    start_us: int
    length_us: int
    nanojoules: int
    source: int


@dataclass(slots=True)
class Second:
    """One sensor's row of one second while it fills."""

    at: int
    nanojoules: int = 0
    covered_us: int = 0
    pieces: int = 0
    watts_min: float = float("inf")
    watts_max: float = 0.0
    doubt: float = 0.0
    edge: float = 0.0
    sources: int = 0

    def add(self, packed: Packed, error: float, edge: float) -> None:
        """Take in a piece that begins in this second."""
        self.nanojoules += packed.nanojoules
        self.covered_us += packed.length_us
        self.pieces += 1
        if packed.length_us > 0:
            watts = packed.nanojoules / NANOJOULES / (packed.length_us / MICROSECONDS)
            self.watts_min, self.watts_max = min(self.watts_min, watts), max(self.watts_max, watts)
        self.doubt += max(0.0, error - edge)
        self.edge = max(self.edge, edge)
        self.sources |= packed.source

    def row(self, sensor_id: int) -> tuple[int | float, ...]:
        """The columns of RollupRow, in order."""
        low = self.watts_min if self.watts_min <= self.watts_max else self.watts_max
        return (
            *(1, self.at, sensor_id, self.nanojoules, self.covered_us, self.pieces),
            *(low, self.watts_max, self.doubt, self.edge, self.sources),
        )


def pack(piece: Piece) -> Packed:
    """A piece in whole numbers. Times are rounded at both ends, so that neighbours still meet."""
    start_us = (piece.date - _EPOCH) // _MICROSECOND
    offset = start_us - round(piece.start * MICROSECONDS)
    end_us = round(piece.end * MICROSECONDS) + offset
    return Packed(start_us, end_us - start_us, round(piece.joules * NANOJOULES), SOURCE_BITS[piece.source])


def place(piece: Piece) -> Place:
    return Place(piece.sensor.device, str(piece.sensor.scope))


class Seconds:
    """The seconds that are filling, one a sensor, and those that are full. Pieces of a sensor come in order."""

    def __init__(self) -> None:
        self._open: dict[Place, Second] = {}

    def add(self, pieces: Iterable[Piece]) -> list[tuple[Place, Second]]:
        """Take in pieces; returns the seconds that they end."""
        full: list[tuple[Place, Second]] = []
        for piece in pieces:
            packed, where = pack(piece), place(piece)
            at = packed.start_us // MICROSECONDS
            second = self._open.get(where)
            if second is None or second.at != at:
                if second is not None:
                    full.append((where, second))
                second = self._open[where] = Second(at)
            second.add(packed, piece.error, piece.edge)
        return full

    def rest(self) -> list[tuple[Place, Second]]:
        """The seconds that are still filling, as far as they are known."""
        return list(self._open.items())
