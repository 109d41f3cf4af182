"""Two threads for all quick readers, one more for each slow one, and nobody waits for a driver that hangs."""

from __future__ import annotations

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
    """Counts its readings; those after ``hang`` was set end when ``release`` is."""

    def __init__(self, name: str, hang: Event | None = None, release: Event | None = None) -> None:
        super().__init__(name, lambda: None, MonotonicClock(), Seconds(PERIOD))
        self.hang, self.release = hang, release
        self.times: list[float] = []

    def _read(self) -> None:
        self.times.append(time.monotonic())
        if self.hang is not None and self.release is not None and self.hang.is_set():
            self.release.wait(20.0)


@contextmanager
def running(*readers: Reader) -> Iterator[Crew]:
    crew = Crew("test", MonotonicClock(), period=PERIOD, grace=PERIOD / 2)
    crew.add(readers)
    crew.start()
    try:
        yield crew
    finally:
        crew.stop()
        assert crew.threads == 0


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20.0
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_every_beat_is_kept_by_a_pair_of_threads() -> None:
    readers = [Counted(str(index)) for index in range(8)]
    with running(*readers) as crew:
        until(lambda: len(readers[-1].times) >= 25)
        assert crew.threads <= 3  # a moment without the processor looks like a slow driver
    for reader in readers:
        gaps = [after - before for before, after in zip(reader.times, reader.times[1:], strict=False)]
        assert sorted(gaps)[len(gaps) // 2] < 1.5 * PERIOD, "at half the rate the two would wait for each other"


def test_a_hanging_reader_gets_a_thread_and_comes_back_when_it_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "QUICK", 3)
    hang, release = Event(), Event()
    stuck, quick = Counted("stuck", hang, release), [Counted("a"), Counted("b")]
    with running(quick[0], stuck, quick[1]) as crew:
        until(lambda: len(stuck.times) >= 3)
        hang.set()
        until(lambda: crew.threads >= 3)
        seen = len(stuck.times), len(quick[0].times), len(quick[1].times)
        until(lambda: all(len(reader.times) >= before + 10 for reader, before in zip(quick, seen[1:], strict=True)))
        assert len(stuck.times) == seen[0]
        hang.clear()
        release.set()
        until(lambda: stuck in crew._members)
        seen_again = len(stuck.times)
        until(lambda: len(stuck.times) >= seen_again + 3)


def test_a_stop_does_not_wait_for_a_driver_and_a_start_goes_on() -> None:
    hang, release = Event(), Event()
    hang.set()
    stuck, quick = Counted("stuck", hang, release), Counted("quick")
    crew = Crew("test", MonotonicClock(), period=PERIOD, grace=PERIOD / 2)
    crew.add([stuck, quick])
    crew.start()
    until(lambda: len(quick.times) >= 2)
    begun = time.monotonic()
    crew.stop()
    assert time.monotonic() - begun < crew_module.STOP_TIMEOUT + 1.0
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
