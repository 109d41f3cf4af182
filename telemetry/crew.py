"""A pair of threads that take turns for many quick readers, and a thread of its own for each that is slow.

A thread that wakes for a few microseconds of work costs several times that work, so readers share one. A driver call
that does not come back must not hold up the others: the second thread, whose turn is the next beat, then leaves the
first to the slow reader and goes on with the rest. A reader that has been quick for a while returns to the pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Event, Lock, Thread
from time import monotonic
from typing import NamedTuple

from energyopt.core.clock import Clock

from .reader import Reader

STOP_TIMEOUT = 2.0
"""Seconds a stop waits for a driver call in progress; the thread is a daemon and ends with the process."""
QUICK = 50
"""Readings in a row within the grace after which a reader is trusted with the pair again."""
TOGETHER = 1e-4
"""Seconds before its time at which a reader is read with the others: a wait may end that much early."""
IDLE = 60.0
"""Seconds to sleep where there is nothing to read; a new reader wakes both threads at once."""


class _Seat:
    """One thread of the pair: until when it sleeps, and whether the other has taken over what it was at."""

    def __init__(self) -> None:
        self.nudge = Event()
        self.until = 0.0
        self.lost = False


class _Call(NamedTuple):
    """A reading in progress."""

    seat: _Seat
    reader: Reader
    since: float


class Crew:
    """Runs readers on their beats until ``stop``. ``period`` is that of the beats.

    One that is read for longer than ``grace`` holds up the others for a beat at most, once. Both in seconds.
    """

    def __init__(self, name: str, clock: Clock, *, period: float, grace: float) -> None:
        self._name = name
        self._clock = clock
        self._period = period
        self._grace = grace
        self._members: tuple[Reader, ...] = ()
        self._lock = Lock()
        self._stop = Event()
        self._running = False
        self._threads: list[Thread] = []
        self._seats: list[_Seat] = []
        self._turn: _Seat | None = None
        self._call: _Call | None = None

    @property
    def threads(self) -> int:
        """How many threads are at work: the pair, and one for each reader that is slow."""
        return sum(thread.is_alive() for thread in self._threads)

    def add(self, readers: Iterable[Reader]) -> None:
        """Take on further readers; they run if the others do."""
        with self._lock:
            self._members = tuple(dict.fromkeys((*self._members, *readers)))
        self._wake()

    def start(self) -> None:
        """Begin to read. Idempotent."""
        if self._running:
            return
        self._running = True
        self._stop.clear()
        with self._lock:
            self._sit()
            self._turn = self._seats[0]
            self._sit()

    def stop(self) -> None:
        """End the threads, but for those that a driver holds. Idempotent."""
        self._stop.set()
        self._wake()
        deadline = monotonic() + STOP_TIMEOUT
        for thread in self._threads:
            thread.join(max(0.0, deadline - monotonic()))
        with self._lock:
            if self._call is not None:
                self._leave(self._call)
            for seat in self._seats:
                seat.lost = True
            self._seats.clear()
            self._threads.clear()
        self._running = False

    def _wake(self) -> None:
        for seat in self._seats:
            seat.nudge.set()

    def _sit(self) -> None:
        seat = _Seat()
        self._seats.append(seat)
        self._spawn(self._serve, seat)

    def _spawn(self, target: Callable[[_Seat], None], seat: _Seat) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = Thread(target=target, args=(seat,), name=f"energyopt-sensor-{self._name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self, seat: _Seat) -> None:
        """Read what is due, every other beat, until stopped or until the other has taken over."""
        while self._rest(seat):
            if not self._claim(seat):
                continue
            due = self._clock.now() + TOGETHER
            for reader in self._members:
                if self._stop.is_set():
                    return
                if reader.due <= due and not self._read(reader, seat):
                    self._alone(reader)
                    return

    def _rest(self, seat: _Seat) -> bool:
        """Wait until it is this thread's turn; False when it is time to stop."""
        seat.nudge.clear()
        with self._lock:
            now = self._clock.now()
            seat.until = self._wake_time(seat, now)
            wait = max(seat.until - now, self._grace if self._call is not None else 0.0)
        return not self._stop.is_set() and not (seat.nudge.wait(wait) and self._stop.is_set())

    def _wake_time(self, seat: _Seat, now: float) -> float:
        """The next beat, or the one after it where the other will be up for the next."""
        due = max(now, min((reader.due for reader in self._members), default=now + IDLE))
        others = [other for other in self._seats if other is not seat and other.until <= due + TOGETHER]
        if self._turn is seat and others:
            self._turn = others[0]
        return due if self._turn is seat else due + self._period

    def _claim(self, seat: _Seat) -> bool:
        """True if this thread may read now; one that has been in a driver for too long is left to its reader."""
        with self._lock:
            call = self._call
            if call is not None:
                if monotonic() - call.since < self._grace:
                    return False
                self._leave(call)
                self._sit()
            self._turn = seat
            return True

    def _leave(self, call: _Call) -> None:
        self._call = None
        call.seat.lost = True
        self._seats.remove(call.seat)
        self._members = tuple(member for member in self._members if member is not call.reader)

    def _read(self, reader: Reader, seat: _Seat) -> bool:
        """Read one; False if the other took over meanwhile, and the reader is this thread's own from now on."""
        self._call = _Call(seat, reader, monotonic())
        reader.take()
        reader.keep_pace()
        with self._lock:
            if seat.lost:
                return False
            self._call = None
            return True

    def _alone(self, reader: Reader) -> None:
        """Read a slow one on this thread, until it is quick again."""
        quick = 0
        while quick < QUICK and not self._stop.wait(reader.wait):
            begun = monotonic()
            reader.take()
            reader.keep_pace()
            quick = quick + 1 if monotonic() - begun < self._grace else 0
        self.add((reader,))
