"""Who reads next, of two threads, in a time that the test steps: nobody is read late because another is slow."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from itertools import count, pairwise
from threading import Thread

import pytest

from energyopt.core.clock import FakeClock
from energyopt.core.units import Seconds
from telemetry.reader import Reader
from telemetry.turns import TOGETHER, Seat, Turns

PERIOD = 0.1
GRACE = PERIOD / 4
Steps = Generator[float, None, None]


class Timed(Reader):
    """A reading takes ``cost(now)`` seconds; one that takes for ever hangs."""

    def __init__(self, clock: FakeClock, cost: Callable[[float], float]) -> None:
        super().__init__("timed", lambda: None, clock, Seconds(PERIOD))
        self.clock, self.cost = clock, cost
        self.times: list[float] = []

    def _read(self) -> None:
        self.times.append(self.clock.now())

    def read_slowly(self) -> Steps:
        yield self.cost(self.clock.now())
        self.take()
        self.keep_pace()

    def largest_gap(self, since: float = 0.0) -> float:
        times = [since, *(at for at in self.times if at >= since), self.clock.now()]
        return max(after - before for before, after in pairwise(times))


class Stage:
    """Runs what the threads of a crew run, as steps of virtual time. ``wakes`` counts the ends of their sleep."""

    def __init__(self, *costs: Callable[[float], float]) -> None:
        self.clock = FakeClock()
        self.turns = Turns(self.clock, period=PERIOD, grace=GRACE)
        self.readers = [Timed(self.clock, cost) for cost in costs]
        self.turns.add(self.readers)
        self.wakes = self.alone = 0
        self._order = count()
        self._queue: list[tuple[float, int, Steps]] = []
        self._fill()

    def run(self, until: float) -> None:
        while self._queue[0][0] <= until:
            at, _, thread = heapq.heappop(self._queue)
            self.clock.advance(max(0.0, at - self.clock.now()))
            if (wait := next(thread, None)) is not None:
                self._push(thread, wait)
        self.clock.advance(until - self.clock.now())

    def _push(self, thread: Steps, wait: float) -> None:
        heapq.heappush(self._queue, (self.clock.now() + wait, next(self._order), thread))

    def _fill(self) -> None:
        while (seat := self.turns.sit()) is not None:
            self._push(self._thread(seat), 0.0)

    def _thread(self, seat: Seat) -> Steps:
        while not seat.lost:
            yield self.turns.rest(seat)
            self.wakes += 1
            if self.turns.claim(seat):
                self._fill()
                yield from self._turn(seat)
                self.turns.done(seat)
        self.alone += 1
        assert isinstance(seat.reader, Timed)
        while True:
            yield seat.reader.wait
            yield from seat.reader.read_slowly()

    def _turn(self, seat: Seat) -> Steps:
        due = self.clock.now() + TOGETHER
        for reader in self.turns.members:
            if reader.due <= due:
                if not self.turns.take_up(seat, reader):
                    return
                assert isinstance(reader, Timed)
                yield from reader.read_slowly()


def takes(seconds: float) -> Callable[[float], float]:
    return lambda now: seconds


def hangs_from(at: float) -> Callable[[float], float]:
    return lambda now: 1e-4 if now < at else 1e9


def test_quick_readers_are_read_on_every_beat_and_one_thread_wakes_for_it() -> None:
    stage = Stage(*[takes(1e-4)] * 8)
    stage.run(until=20.0)
    assert stage.alone == 0
    assert stage.wakes <= 20.0 / PERIOD + 4
    for reader in stage.readers:
        assert len(reader.times) >= 20.0 / PERIOD - 1
        assert reader.largest_gap() < 1.1 * PERIOD


def test_many_that_together_take_longer_than_a_beat_are_read_at_the_full_rate() -> None:
    stage = Stage(*[takes(0.02)] * 8)
    stage.run(until=20.0)
    assert 1 <= stage.alone <= 5, "as many as make the rest fit"
    for reader in stage.readers:
        assert reader.largest_gap(since=1.0) < 1.1 * PERIOD, "at half the rate they would wait for each other"
        assert reader.largest_gap() <= 3.1 * PERIOD, "until those that are too many have left, one a beat"


@pytest.mark.parametrize("second", [5.0, 5.05, 5.1, 9.0])
def test_drivers_that_hang_hold_up_the_others_for_a_beat_each(second: float) -> None:
    stage = Stage(takes(1e-4), hangs_from(5.0), takes(1e-4), hangs_from(second), takes(1e-4))
    stage.run(until=20.0)
    for reader in (stage.readers[index] for index in (0, 2, 4)):
        assert reader.largest_gap() <= 3.1 * PERIOD
        assert sum(at >= 10.0 for at in reader.times) >= 99
    assert len(stage.turns.seats) == 2
    assert set(stage.turns.members) == {stage.readers[index] for index in (0, 2, 4)}


class Yielding(Turns):
    """Lets another thread try what it likes after the first look at who is at his turn."""

    other: Thread | None = None

    def _busy_beside(self, seat: Seat) -> Seat | None:
        busy = super()._busy_beside(seat)
        other, self.other = self.other, None
        if other is not None:
            other.start()
            other.join(0.05)
        return busy


def test_a_turn_is_claimed_and_marked_in_one_piece() -> None:
    """Two at their turn at once: the end of one would hide that the other hangs."""
    turns, claims = Yielding(FakeClock(), period=PERIOD, grace=GRACE), list[bool]()
    first, second = turns.sit(), turns.sit()
    assert first is not None
    assert second is not None
    turns.other = other = Thread(target=lambda: claims.append(turns.claim(second)))
    claims.append(turns.claim(first))
    other.join()
    assert sorted(claims) == [False, True]


def test_a_turn_that_began_just_before_a_beat_is_given_the_grace() -> None:
    stage = Stage(takes(GRACE / 2))
    first, second = stage.turns.seats
    stage.clock.advance(PERIOD * 1.95)
    assert stage.turns.claim(first)
    assert stage.turns.take_up(first, stage.readers[0])
    stage.clock.advance(PERIOD * 0.1)
    assert not stage.turns.claim(second)
    stage.clock.advance(GRACE)
    assert stage.turns.claim(second)
    assert first.lost
    assert first.reader is stage.readers[0]
    assert not stage.turns.take_up(first, stage.readers[0])
    assert stage.turns.members == ()


def test_what_fits_is_what_all_could_take() -> None:
    stage = Stage(*[takes(1e-4)] * 7)
    assert stage.turns.fits(0.012)
    assert not stage.turns.fits(0.013)
    assert not Stage().turns.fits(GRACE)
