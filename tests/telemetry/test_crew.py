"""Two threads for all quick readers, one more for each slow one, and nobody waits for a driver that hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event

import pytest

from energyopt.core.clock import MonotonicClock
from energyopt.core.units import Seconds
from telemetry import crew as crew_module
from telemetry.crew import Crew
from telemetry.reader import Reader

PERIOD = 0.02


class Counted(Reader):
    """Counts its readings; those after ``hang`` was set end when ``release`` is, and it ``hangs`` until then."""

    def __init__(self, name: str, hang: Event | None = None, release: Event | None = None) -> None:
        super().__init__(name, lambda: None, MonotonicClock(), Seconds(PERIOD))
        self.hang, self.release = hang, release
        self.times: list[float] = []
        self.hangs = False

    def _read(self) -> None:
        self.times.append(time.monotonic())
        if self.hang is not None and self.release is not None and self.hang.is_set():
            self.hangs = True
            self.release.wait(20.0)
            self.hangs = False


@contextmanager
def running(*readers: Reader) -> Iterator[Crew]:
    crew = Crew("test", MonotonicClock(), period=PERIOD, grace=PERIOD / 2)
    crew.add(readers)
    crew.start()
    try:
        yield crew
    finally:
        crew.stop()
        assert not at_work()


def at_work() -> list[str]:
    """Sensor threads of these tests that are alive, whatever their crew counts."""
    return [thread.name for thread in threading.enumerate() if thread.name == "energyopt-sensor-test"]


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20.0
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_pair_of_threads_reads_all() -> None:
    """On which beats is a matter of turns, which are tested in a time of their own."""
    readers = [Counted(str(index)) for index in range(8)]
    with running(*readers) as crew:
        until(lambda: all(len(reader.times) >= 10 for reader in readers))
        assert len(at_work()) >= 2
        until(lambda: crew.threads == len(at_work()))


def test_a_second_driver_that_hangs_is_seen_like_the_first() -> None:
    """One that hung unseen would leave nobody for the next."""
    release = Event()
    hangs = [Event(), Event()]
    stuck = [Counted(f"stuck {index}", hang, release) for index, hang in enumerate(hangs)]
    quick = Counted("quick")
    crew = Crew("test", MonotonicClock(), period=PERIOD, grace=PERIOD / 2)
    crew.add([quick, *stuck])
    crew.start()
    try:
        for hang in hangs:
            until(lambda: len(quick.times) >= 2)
            hang.set()
            quick.times.clear()
        until(lambda: len(quick.times) >= 5)
    finally:
        release.set()
        crew.stop()
    until(lambda: not at_work())


def test_a_hanging_reader_gets_a_thread_and_comes_back_when_it_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "QUICK", 3)
    hang, release = Event(), Event()
    stuck, quick = Counted("stuck", hang, release), [Counted("a"), Counted("b")]
    with running(quick[0], stuck, quick[1]) as crew:
        until(lambda: len(stuck.times) >= 3)
        hang.set()
        until(lambda: stuck.hangs)
        seen = len(stuck.times), len(quick[0].times), len(quick[1].times)
        until(lambda: all(len(reader.times) >= before + 10 for reader, before in zip(quick, seen[1:], strict=True)))
        assert len(stuck.times) == seen[0]
        assert crew.threads >= 3
        hang.clear()
        release.set()
        until(lambda: stuck in crew._turns.members)
        seen_again = len(stuck.times)
        until(lambda: len(stuck.times) >= seen_again + 3)


def test_a_stop_does_not_wait_for_a_driver_and_a_start_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "STOP_TIMEOUT", 0.2)
    hang, release = Event(), Event()
    hang.set()
    stuck, quick = Counted("stuck", hang, release), Counted("quick")
    crew = Crew("test", MonotonicClock(), period=PERIOD, grace=PERIOD / 2)
    crew.add([stuck, quick])
    crew.start()
    until(lambda: len(quick.times) >= 2)
    until(lambda: stuck.hangs)
    crew.stop()
    assert stuck.hangs
    before = len(quick.times)
    crew.start()
    until(lambda: len(quick.times) >= before + 3)
    release.set()
    hang.clear()
    crew.stop()


def test_a_reader_that_is_added_is_read_at_once() -> None:
    with running() as crew:
        late = Counted("late")
        crew.add([late])
        until(lambda: len(late.times) >= 2)
