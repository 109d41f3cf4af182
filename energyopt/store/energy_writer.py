"""Settled energy into SQL: an ``EnergySink`` with a thread of its own, a bounded queue, and accounts of both.

``accept`` never waits for the database. What the database refuses is kept and tried again, with growing pauses; what
no longer fits is counted as lost, oldest rows last. A full second is committed as soon as the next one begins, so a
``kill -9`` loses at most the second that was open (and what was still queued behind a slow database).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import SQLAlchemyError

from energyopt.core.clock import Clock
from energyopt.core.errors import StoreError

from .energy_rows import Piece, Place, Second, Seconds
from .energy_sql import newest, prune_chunks, prune_rollups, roll_minutes, write_seconds
from .refusal import refusal
from .run_recorder import RunRecorder

log = logging.getLogger(__name__)

DAY = 86_400
MAX_QUEUE = 100_000
"""Pieces that wait to be taken: two minutes of 8 sensors at 100 Hz."""
MAX_ROWS = 100_000
"""Rows of seconds that wait for a database that refuses: 3.5 hours of 8 sensors."""
FLUSH_EVERY = 1.0
RETRY = (1.0, 30.0)
MINUTES_BACK = 3
"""Whole minutes that are made again each time: energy may settle up to half a minute late."""
PRUNE_SLICE = 3600


@dataclass(frozen=True, slots=True)
class Retention:
    """Seconds for which rows are kept."""

    seconds: int = 7 * DAY
    minutes: int = 400 * DAY
    chunks: int = 30 * DAY


@dataclass(frozen=True, slots=True)
class WriterStats:
    """Pieces ``accepted`` and ``lost`` (refused), how many wait now and at most; rows written, waiting and lost."""

    accepted: int
    lost: int
    queued: int
    most_queued: int
    rows_written: int
    rows_waiting: int
    rows_lost: int
    failure: str | None


class SqlEnergyWriter:
    """Writes pieces of any number of sensors of one ``host``. Thread-safe; ``close`` writes what is known.

    ``engine`` is that of a database at this version's revision; ``name`` is how messages call it.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        name: str,
        host: str,
        *,
        retention: Retention = Retention(),
        max_queue: int = MAX_QUEUE,
        flush_every: float = FLUSH_EVERY,
    ) -> None:
        self._engine = engine.execution_options(sqlite_begin="IMMEDIATE")
        self._clock, self._host = clock, host
        self.name = name
        self._retention, self._max_queue, self._flush_every = retention, max_queue, flush_every
        self._queue: deque[Sequence[Piece]] = deque()
        self._queued = self._most = self._accepted = self._lost = 0
        self._written = self._rows_lost = 0
        self._failure: str | None = None
        self._seconds = Seconds()
        self._rows: dict[tuple[Place, int], Second] = {}
        self._ids: dict[Place, int] = {}
        self._minute = 0
        self._newest = 0
        self._recorder = RunRecorder()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="energyopt-energy-writer", daemon=True)
        self._thread.start()

    def accept(self, chunks: Sequence[Piece]) -> None:
        """Queue pieces. Raises StoreError, and counts them as lost, when the queue is full or the writer closed."""
        with self._lock:
            if self._closing or self._queued + len(chunks) > self._max_queue:
                self._lost += len(chunks)
                why = "is closed" if self._closing else f"is behind by {self._queued} pieces, the most it may be"
                raise StoreError(f"{len(chunks)} pieces of energy were lost: the writer to {self.name} {why}.")
            self._queue.append(tuple(chunks))
            self._queued += len(chunks)
            self._accepted += len(chunks)
            self._most = max(self._most, self._queued)
            # A new second ends the one before, which is to be safe at once.
            newest_second = int(chunks[-1].date.timestamp()) if chunks else 0
            urgent = newest_second > self._newest or self._queued * 2 > self._max_queue
            self._newest = max(self._newest, newest_second)
        if urgent:
            self._wake.set()

    def begin_run(self, run: str) -> None:
        """Keep every piece of time from now on under this name too, until ``end_run``. Raises StoreError."""
        self._recorder.begin(run, self._clock.utc())

    def end_run(self, run: str) -> None:
        """The run's window ends now; what settles late is still taken. Raises StoreError if it was not begun."""
        self._recorder.end(run, self._clock.utc())
        self._wake.set()

    @property
    def stats(self) -> WriterStats:
        """A consistent snapshot."""
        with self._lock:
            return WriterStats(
                *(self._accepted, self._lost, self._queued, self._most),
                *(self._written, len(self._rows), self._rows_lost, self._failure),
            )

    def close(self, timeout: float = 30.0) -> None:
        """Write what is queued, the open seconds too, end the thread and close the connections; idempotent.

        Raises StoreError if the database refuses, or does not answer for ``timeout`` seconds.
        """
        with self._lock:
            self._closing = True
        self._wake.set()
        self._thread.join(timeout)
        self._engine.dispose()
        if self._thread.is_alive() or self._failure is not None:
            raise StoreError(f"Energy could not be written to {self.name}: {self._failure or 'it does not answer'}.")

    def _run(self) -> None:
        pause = self._flush_every
        while True:
            self._wake.wait(pause)
            self._wake.clear()
            last = self._closing
            try:
                self._take(last)
                self._flush(last)
                pause, self._failure = self._flush_every, None
            except StoreError as error:
                if self._failure is None:
                    log.warning("energy waits for the database: %s", error)
                self._failure = str(error)
                pause = min(RETRY[1], max(RETRY[0], pause * 2))
            if last:
                return

    def _take(self, last: bool) -> None:
        """From the queue to rows: full seconds, and at the end the open ones."""
        while True:
            with self._lock:
                if not self._queue:
                    break
                pieces = self._queue.popleft()
                self._queued -= len(pieces)
            self._recorder.keep(pieces)
            self._hold(self._seconds.add(pieces))
        if last:
            self._hold(self._seconds.rest())

    def _hold(self, seconds: Sequence[tuple[Place, Second]]) -> None:
        for where, second in seconds:
            self._rows[where, second.at] = second
        while len(self._rows) > MAX_ROWS:
            self._rows.pop(next(iter(self._rows)))
            self._rows_lost += 1

    def _flush(self, last: bool) -> None:
        """One transaction: rows, exact pieces, minutes that are over, what is too old."""
        chunks = self._recorder.due(self._clock.utc(), everything=last)
        minute = max((at // 60 for _, at in self._rows), default=self._minute)
        if not self._rows and not chunks and minute == self._minute:
            return
        with self._transaction() as connection:
            for where in {place for place, _ in self._rows} | {place for _, place, _ in chunks}:
                self._ids[where] = self._ids.get(where) or _sensor_id(connection, self._host, where)
            write_seconds(connection, [second.row(self._ids[where]) for (where, _), second in self._rows.items()])
            for run, where, pieces in chunks:
                self._recorder.write(connection, run, self._ids[where], pieces)
            if minute != self._minute or last:
                self._turn(connection, minute, last)
        self._written += len(self._rows)
        self._rows.clear()
        self._recorder.done(chunks, self._clock.utc())
        self._minute = minute

    def _turn(self, connection: Connection, minute: int, last: bool) -> None:
        """A minute has passed, or the first one begins: after a restart also those that nobody rolled up."""
        since = minute - MINUTES_BACK
        if not self._minute:
            done = newest(connection, 60)
            first = minute - self._retention.seconds // 60
            since = first if done is None else max(first, min(since, done // 60))
        roll_minutes(connection, since * 60, (minute + int(last)) * 60)
        now = int(self._clock.utc().timestamp())
        for resolution, kept in ((1, self._retention.seconds), (60, self._retention.minutes)):
            prune_rollups(connection, resolution, now - kept, PRUNE_SLICE * resolution)
        prune_chunks(connection, now - self._retention.chunks)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            self._ids.clear()  # an id may have been rolled back with the rest
            raise refusal(error, self.name) from error


def _sensor_id(connection: Connection, host: str, where: Place) -> int:
    names = {"host": host, "device": where.device, "scope": where.scope}
    values = "(host, device, scope) VALUES (:host, :device, :scope)"
    insert = f"INSERT INTO energyopt_sensors {values} ON CONFLICT DO NOTHING"
    connection.execute(text(insert), names)
    select = "SELECT id FROM energyopt_sensors WHERE host = :host AND device = :device AND scope = :scope"
    return int(connection.execute(text(select), names).scalar_one())
