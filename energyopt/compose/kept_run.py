"""Keeps the energy of one run in the database: rows of seconds and minutes, and every piece of the run's window."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from energyopt.core.clock import Clock
from energyopt.store.energy_store import open_energy_writer
from energyopt.store.energy_writer import SqlEnergyWriter
from telemetry.chunker import Chunker
from telemetry.meter import Meter


@dataclass(frozen=True, slots=True)
class Keep:
    """The database (path or URL) and the name under which the run's exact energy is found again."""

    db: str
    run: str


class KeptRun:
    """An open run; without a writer it does nothing. ``hand_over`` about once a second."""

    def __init__(self, keep: Keep | None, writer: SqlEnergyWriter | None, clock: Clock) -> None:
        self._keep = keep
        self._writer = writer
        self._chunker = Chunker(clock)

    def hand_over(self, meter: Meter, *, last: bool = False) -> None:
        """Give the writer what has settled. Raises StoreError for what it cannot take."""
        if self._writer is None:
            return
        chunks = self._chunker.cut([channel.curve for channel in meter.channels], last=last)
        if chunks:
            self._writer.accept(chunks)

    def end(self) -> None:
        """The run's window ends now; what settles late still belongs to it."""
        if self._writer is not None and self._keep is not None:
            self._writer.end_run(self._keep.run)


@contextmanager
def kept_run(keep: Keep | None, clock: Clock) -> Iterator[KeptRun]:
    """Open the database and begin the run. Raises ConfigError, StoreError; on the way out what is queued is written."""
    if keep is None:
        yield KeptRun(None, None, clock)
        return
    writer = open_energy_writer(keep.db, socket.gethostname(), clock=clock)
    try:
        writer.begin_run(keep.run)
        yield KeptRun(keep, writer, clock)
    finally:
        writer.close()
