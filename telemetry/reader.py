"""What every reading of a driver shares: one reading at a time, a beat, and failures that are kept in words."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from threading import Lock

from energyopt.core.clock import Clock
from energyopt.core.errors import SensorError
from energyopt.core.units import Seconds

from .beat import Beat

log = logging.getLogger(__name__)


class Reader(ABC):
    """Reads one source on a beat, slower with every failure in a row. ``take`` may be called from any thread.

    ``errors`` counts failed readings; ``failure`` is why the last one failed, None after one that did not.
    """

    def __init__(self, what: str, release: Callable[[], None], clock: Clock, period: Seconds) -> None:
        self.errors = 0
        self.failure: str | None = None
        self.closed = False
        self._what = what
        self._release = release
        self._beat = Beat(clock, period)
        self._reading = Lock()
        self._failures_in_row = 0

    @property
    def wait(self) -> Seconds:
        """Seconds until the next regular reading."""
        return self._beat.wait

    @property
    def due(self) -> float:
        """When the next regular reading is to be, on the clock."""
        return self._beat.due

    def take(self) -> bool:
        """Read once now. False if it failed, if closed, or if another thread is reading, whose reading will do."""
        if self.closed or not self._reading.acquire(blocking=False):
            return False
        try:
            return self._take()
        finally:
            self._reading.release()

    def close(self) -> None:
        """Release the driver and read no more. A call that hangs in the driver keeps its handle: pulling it away
        would crash the process."""
        self.closed = True
        if self._reading.acquire(blocking=False):
            try:
                self._release()
            finally:
                self._reading.release()

    def keep_pace(self) -> None:
        """Set the next time to read: on the beat, or after a pause that doubles with every failure in a row."""
        self._beat.advance(self._failures_in_row)

    @abstractmethod
    def _read(self) -> None:
        """Read the source and keep what it says. Raises SensorError."""

    def _take(self) -> bool:
        try:
            self._read()
            self._failures_in_row, self.failure = 0, None
            return True
        except SensorError as error:
            self._fail(str(error))
            return False
        except Exception as error:  # a driver's binding may raise anything; it must not end the thread unseen
            log.exception("Reading %s raised an unexpected error.", self._what)
            self._fail(f"{type(error).__name__}: {error}")
            return False

    def _fail(self, words: str) -> None:
        self.errors += 1
        self._failures_in_row += 1
        self.failure = words
