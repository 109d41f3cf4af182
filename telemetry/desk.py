"""Where accounts are kept: a thread beside the engine's, which takes what happened in order, a little later.

Booking a step of 64 requests takes a few tenths of a millisecond, which the next step must not wait for.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from threading import Event, RLock, Thread

PAUSE = 0.1
"""Seconds between rounds: what a reader of the account may at most have to book himself."""
FULL = 10_000
"""Entries that may wait; whoever adds one more works them off, so that nothing is lost and memory is bounded."""


class Desk:
    """Runs entries in the order in which they came, each once. Until ``start`` and after ``stop`` at once.

    An entry that raises ends the account: the next ``add`` or ``catch_up`` raises the same error, as it would have
    without the desk, and nothing after it is done. Thread-safe.
    """

    def __init__(self) -> None:
        self._entries: deque[Callable[[], None]] = deque()
        self._working = RLock()
        self._stop = Event()
        self._thread: Thread | None = None
        self._error: Exception | None = None

    def start(self) -> None:
        """Begin to work on a thread. Idempotent."""
        if self._thread is None:
            self._stop.clear()
            self._thread = Thread(target=self._run, name="energyopt-account", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread, with nothing left to do. Idempotent."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None
        self.catch_up()

    def add(self, entry: Callable[[], None]) -> None:
        """Take on an entry; what it does is seen after the next ``catch_up`` at the latest."""
        self._entries.append(entry)
        if self._thread is None or self._error is not None or len(self._entries) > FULL:
            self.catch_up()

    def catch_up(self) -> None:
        """Do all that waits, on this thread, so that what is read next is complete."""
        while self._next():
            pass
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while not self._stop.wait(PAUSE):
            while self._next():
                time.sleep(0)  # lets the engine have the interpreter between two entries

    def _next(self) -> bool:
        with self._working:
            if self._error is not None:
                self._entries.clear()
            if not self._entries:
                return False
            entry = self._entries.popleft()
            try:
                entry()
            except Exception as error:  # noqa: BLE001 - the thread's border: whoever adds or reads next gets it
                self._error = error
            return True
