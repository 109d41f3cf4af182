"""Exact pieces of energy within run windows: which runs are open, what they hold, and how it is written."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

from energyopt.core.errors import StoreError

from .chunk_codec import MAX_PIECES, encode_chunk
from .energy_rows import MICROSECONDS, Packed, Piece, Place, pack, place

CHUNK_US = 60 * MICROSECONDS
LATE = timedelta(seconds=120)
"""How long after a run's end energy of its window may still settle."""
MAX_RUNS = 16
MAX_HELD = MAX_PIECES
"""Pieces of one run and sensor that are held unwritten; older ones are then lost, and ``lost`` counts them."""

Due = tuple[str, Place, tuple[Packed, ...]]

_INSERT = """
INSERT INTO energyopt_chunks (run, sensor_id, start_us, end_us, pieces, payload)
VALUES (:run, :sensor, :start, :end, :pieces, :payload)
ON CONFLICT (run, sensor_id, start_us) DO UPDATE SET end_us = excluded.end_us, pieces = excluded.pieces,
  payload = excluded.payload WHERE excluded.pieces > energyopt_chunks.pieces
"""


class RunRecorder:
    """Runs are begun and ended by any thread; the other methods belong to the writer's.

    A piece is in a run if it begins within its window; a window that has ended waits LATE seconds for late ones.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._windows: dict[str, tuple[datetime, datetime | None]] = {}
        self._held: dict[tuple[str, Place], list[Packed]] = {}
        self.lost = 0

    def begin(self, run: str, now: datetime) -> None:
        """Raises StoreError if the run is open already, or too many are."""
        with self._lock:
            if run in self._windows or len(self._windows) >= MAX_RUNS:
                known = run in self._windows
                why = "was begun already" if known else f"is one too many: {MAX_RUNS} are being recorded"
                raise StoreError(f"The run {run!r} {why}.")
            self._windows[run] = (now, None)

    def end(self, run: str, now: datetime) -> None:
        """Raises StoreError if the run is not open."""
        with self._lock:
            start, end = self._windows.get(run, (now, now))
            if end is not None:
                raise StoreError(f"The run {run!r} is not being recorded.")
            self._windows[run] = (start, now)

    def keep(self, pieces: Iterable[Piece]) -> None:
        """Take in pieces for every run whose window they begin in."""
        with self._lock:
            windows = tuple(self._windows.items())
        if not windows:
            return
        for piece in pieces:
            for run, (start, end) in windows:
                if start <= piece.date and (end is None or piece.date < end):
                    held = self._held.setdefault((run, place(piece)), [])
                    held.append(pack(piece))
                    if len(held) > MAX_HELD:
                        self.lost += 1
                        del held[0]

    def due(self, now: datetime, *, everything: bool) -> list[Due]:
        """What to write now: a minute or more of a run and sensor, and whatever there is of one that has ended."""
        with self._lock:
            ended = {run for run, (_, end) in self._windows.items() if end is not None and end <= now}
        return [
            (run, where, tuple(held[:MAX_PIECES]))
            for (run, where), held in self._held.items()
            if held and (everything or run in ended or held[-1].start_us - held[0].start_us >= CHUNK_US)
        ]

    def write(self, connection: Connection, run: str, sensor: int, pieces: Sequence[Packed]) -> None:
        """One row of it."""
        last = pieces[-1]
        values = {"run": run, "sensor": sensor, "start": pieces[0].start_us, "end": last.start_us + last.length_us}
        connection.execute(text(_INSERT), {**values, "pieces": len(pieces), "payload": encode_chunk(pieces)})

    def done(self, written: Iterable[Due], now: datetime) -> None:
        """Forget what was committed, and runs that ended long ago."""
        for run, where, pieces in written:
            held = self._held[run, where]
            del held[: len(pieces)]
            if not held:
                del self._held[run, where]
        with self._lock:
            for run in [run for run, (_, end) in self._windows.items() if end is not None and now - end > LATE]:
                del self._windows[run]
