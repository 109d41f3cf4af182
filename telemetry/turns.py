"""Whose turn it is to read, of the threads of a crew: a policy that waits for nothing and starts nothing.

One thread at a time is at its turn. One that is still at it a beat later is in a driver that does not answer, or has
more to read than fits into a beat: it then leaves the pair with the reader that it is at, and the other goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import floor
from threading import Event, Lock

from energyopt.core.clock import Clock

from .reader import Reader

PAIR = 2
TOGETHER = 1e-4
"""Seconds before its time at which a reader is read with the others: a wait may end that much early."""
IDLE = 60.0
"""Seconds to sleep where there is nothing to read; a new reader wakes both threads at once."""


class Seat:
    """One thread of the pair: until when it sleeps, since when it is at its turn, and at which reader.

    ``lost`` says that the other has taken over; ``reader`` is then this thread's own.
    """

    def __init__(self) -> None:
        self.nudge = Event()
        self.until = 0.0
        self.since: float | None = None
        self.reader: Reader | None = None
        self.lost = False


class Turns:
    """Members and seats of a crew. ``period`` is that of the beats, which lie at its multiples; nobody is left who is
    at his turn for less than ``grace``. Both in seconds. Thread-safe.
    """

    def __init__(self, clock: Clock, *, period: float, grace: float) -> None:
        self._clock = clock
        self._period = period
        self._grace = grace
        self._lock = Lock()
        self._turn: Seat | None = None
        self.seats: tuple[Seat, ...] = ()
        self.members: tuple[Reader, ...] = ()

    def add(self, readers: Iterable[Reader]) -> None:
        """Take on further readers."""
        with self._lock:
            self.members = tuple(dict.fromkeys((*self.members, *readers)))

    def sit(self) -> Seat | None:
        """A seat for one more thread; None where the pair is complete. The first has the first turn."""
        with self._lock:
            if len(self.seats) == PAIR:
                return None
            seat = Seat()
            self.seats = (*self.seats, seat)
            if self._turn not in self.seats:
                self._turn = seat
            return seat

    def rest(self, seat: Seat) -> float:
        """For how many seconds to sleep now."""
        with self._lock:
            now = self._clock.now()
            seat.until = self._wake_time(seat, now)
            return max(0.0, seat.until - now)

    def claim(self, seat: Seat) -> bool:
        """True if this thread may read now, until ``done``."""
        with self._lock:
            now = self._clock.now() + TOGETHER
            busy = self._busy_beside(seat)
            if seat.lost or (busy is not None and now < self._patience(busy)):
                return False
            if busy is not None:
                self._leave(busy)
            self._turn, seat.since = seat, now
            return True

    def take_up(self, seat: Seat, reader: Reader) -> bool:
        """Note what the thread is about to read; False if the other took over meanwhile."""
        with self._lock:
            if seat.lost:
                return False
            seat.reader = reader
            return True

    def done(self, seat: Seat) -> None:
        """The turn is over; a seat that was lost keeps what it was at."""
        with self._lock:
            if not seat.lost:
                seat.since = seat.reader = None

    def fits(self, seconds: float) -> bool:
        """Whether a reader that takes so long may be read with the members, were all of them alike."""
        return seconds < min(self._grace, self._period / (len(self.members) + 1))

    def clear(self) -> None:
        """Leave every seat: a thread that is still in a driver keeps its reader."""
        with self._lock:
            for seat in self.seats:
                self._leave(seat)

    def _wake_time(self, seat: Seat, now: float) -> float:
        """The next beat, or the one after it where the other will be up for the next."""
        busy = self._busy_beside(seat)
        if busy is not None:
            return max((floor(now / self._period) + 1) * self._period, self._patience(busy))
        due = max(now, min((reader.due for reader in self.members), default=now + IDLE))
        others = [other for other in self.seats if other is not seat and other.until <= due + TOGETHER]
        if self._turn is seat and others:
            self._turn = others[0]
        return due if self._turn is seat else due + self._period

    def _patience(self, busy: Seat) -> float:
        """Until when a thread may be at its turn."""
        since = busy.since or 0.0
        return max((floor(since / self._period) + 1) * self._period, since + self._grace)

    def _busy_beside(self, seat: Seat) -> Seat | None:
        return next((other for other in self.seats if other is not seat and other.since is not None), None)

    def _leave(self, seat: Seat) -> None:
        seat.lost = True
        self.seats = tuple(other for other in self.seats if other is not seat)
        self.members = tuple(member for member in self.members if member is not seat.reader)
