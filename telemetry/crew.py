"""A pair of threads that take turns for many quick readers, and a thread of its own for each that is slow.

A thread that wakes for a few microseconds of work costs several times that work, so readers share one. A driver call
that does not come back must not hold up the others: the second thread, whose turn is the next beat, then leaves the
first to the slow reader and goes on with the rest. A reader that has been quick for a while returns to the pair.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Event, Lock, Thread
from time import monotonic

from energyopt.core.clock import Clock

from .reader import Reader
from .turns import TOGETHER, Seat, Turns

STOP_TIMEOUT = 2.0
"""Seconds a stop waits for a driver call in progress; the thread is a daemon and ends with the process."""
QUICK = 50
"""Readings in a row that would fit into the turn of the pair after which a reader is trusted with it again."""


class Crew:
    """Runs readers on their beats until ``stop``. ``period`` is that of the beats.

    A turn that lasts for longer than ``grace`` and into the next beat holds up the others until then, once. Both in
    seconds.
    """

    def __init__(self, name: str, clock: Clock, *, period: float, grace: float) -> None:
        self._name = name
        self._clock = clock
        self._turns = Turns(clock, period=period, grace=grace)
        self._lock = Lock()
        self._stop = Event()
        self._stop.set()
        self._threads: list[Thread] = []

    @property
    def threads(self) -> int:
        """How many threads are at work: the pair, and one for each reader that is slow."""
        return sum(thread.is_alive() for thread in self._threads)

    def add(self, readers: Iterable[Reader]) -> None:
        """Take on further readers; they run if the others do."""
        self._turns.add(readers)
        self._wake()

    def start(self) -> None:
        """Begin to read. Idempotent."""
        self._stop.clear()
        self._fill()

    def stop(self) -> None:
        """End the threads, but for those that a driver holds. Idempotent."""
        with self._lock:  # a thread that fills the pair has done so, or sees that it is the end
            self._stop.set()
        self._wake()
        deadline = monotonic() + STOP_TIMEOUT
        for thread in self._threads:
            thread.join(max(0.0, deadline - monotonic()))
        self._turns.clear()
        self._threads = []

    def _wake(self) -> None:
        for seat in self._turns.seats:
            seat.nudge.set()

    def _fill(self) -> None:
        """A thread for every seat of the pair that is free."""
        with self._lock:
            while not self._stop.is_set() and (seat := self._turns.sit()) is not None:
                name = f"energyopt-sensor-{self._name}"
                thread = Thread(target=self._serve, args=(seat,), name=name, daemon=True)
                self._threads = [one for one in self._threads if one.is_alive()] + [thread]
                thread.start()

    def _serve(self, seat: Seat) -> None:
        """Read what is due, every other beat, until stopped or until the other has taken over."""
        while self._rest(seat):
            if self._turns.claim(seat):
                self._fill()
                self._read_due(seat)
                self._turns.done(seat)
        if seat.lost and seat.reader is not None:
            self._alone(seat.reader)

    def _rest(self, seat: Seat) -> bool:
        """Wait until it may be this thread's turn; False when it is time to end."""
        seat.nudge.clear()
        if not self._stop.is_set() and not seat.lost:
            seat.nudge.wait(self._turns.rest(seat))
        return not self._stop.is_set() and not seat.lost

    def _read_due(self, seat: Seat) -> None:
        due = self._clock.now() + TOGETHER
        for reader in self._turns.members:
            if self._stop.is_set():
                return
            if reader.due <= due:
                if not self._turns.take_up(seat, reader):
                    return
                reader.take()
                reader.keep_pace()

    def _alone(self, reader: Reader) -> None:
        """Read a slow one on this thread, until it is quick again."""
        quick = 0
        while quick < QUICK and not self._stop.wait(reader.wait):
            begun = monotonic()
            reader.take()
            reader.keep_pace()
            quick = quick + 1 if self._turns.fits(monotonic() - begun) else 0
        self.add((reader,))
