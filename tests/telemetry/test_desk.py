"""An account kept beside the engine: in order, complete when it is read, bounded, and with no error lost."""

from __future__ import annotations

import time
from functools import partial
from threading import Event, get_ident

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.clock import FakeClock
from energyopt.core.records import Phase, StepRecord, StepShare
from telemetry import desk as desk_module
from telemetry.desk import Desk
from telemetry.fake import FakeSource
from telemetry.meter import Meter


@given(st.lists(st.sampled_from(["add", "catch_up", "start", "stop"]), max_size=40))
@settings(max_examples=25, deadline=None)
def test_entries_are_done_once_in_order_whatever_the_thread_does(acts: list[str]) -> None:
    desk, done = Desk(), list[int]()
    added = 0
    for act in acts:
        if act == "add":
            desk.add(partial(done.append, added))
            added += 1
        elif act == "catch_up":
            desk.catch_up()
            assert done == list(range(added))
        elif act == "start":
            desk.start()
        else:
            desk.stop()
            assert done == list(range(added))
    desk.stop()
    assert done == list(range(added))


def test_who_adds_does_not_wait_for_what_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk_module, "PAUSE", 0.001)
    desk, release, threads = Desk(), Event(), list[int]()

    def slow() -> None:
        threads.append(get_ident())
        release.wait(20.0)

    desk.start()
    desk.add(slow)
    deadline = time.monotonic() + 20.0
    while not threads and time.monotonic() < deadline:
        time.sleep(0.001)
    desk.add(partial(threads.append, 0))
    assert threads == [threads[0]]
    assert threads[0] != get_ident()
    release.set()
    desk.stop()
    assert threads[1:] == [0]


def test_a_full_desk_is_worked_off_by_who_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk_module, "PAUSE", 60.0)
    monkeypatch.setattr(desk_module, "FULL", 5)
    desk, done = Desk(), list[int]()
    desk.start()
    for number in range(5):
        desk.add(partial(done.append, number))
    assert done == []
    desk.add(partial(done.append, 5))
    assert done == list(range(6))
    desk.stop()


@pytest.mark.parametrize("started", [False, True])
def test_an_error_reaches_who_adds_or_reads_next(monkeypatch: pytest.MonkeyPatch, started: bool) -> None:
    monkeypatch.setattr(desk_module, "PAUSE", 60.0)
    desk = Desk()

    def fail() -> None:
        raise ValueError("a step without an end")

    if started:
        desk.start()
        desk.add(fail)
        with pytest.raises(ValueError, match="without an end"):
            desk.catch_up()
    else:
        with pytest.raises(ValueError, match="without an end"):
            desk.add(fail)
    done: list[int] = []
    with pytest.raises(ValueError, match="without an end"):
        desk.add(lambda: done.append(1))
    with pytest.raises(ValueError, match="without an end"):
        desk.stop()
    assert done == [], "an account without one of its steps is not continued"


@given(
    st.lists(
        st.tuples(st.floats(0, 0.4), st.floats(0.01, 0.6), st.lists(st.sampled_from("abc"), max_size=3), st.booleans()),
        min_size=1,
        max_size=12,
    )
)
@settings(max_examples=30, deadline=None)
def test_an_account_kept_beside_the_engine_sums_to_the_sensor_whenever_it_is_read(
    plan: list[tuple[float, float, list[str], bool]],
) -> None:
    clock = FakeClock()
    meter = Meter([FakeSource(clock)], clock)
    curve = meter.channels[0].curve
    meter.sampler.poll()
    meter.desk.start()
    for gap, length, requests, asked in plan:
        clock.advance(gap)
        start = clock.now()
        clock.advance(length)
        meter.sampler.poll()
        shares = tuple(StepShare(request, Phase.DECODE, 1, 0) for request in dict.fromkeys(requests))
        meter.record(StepRecord(start, clock.now(), ("GPU-fake",), shares))
        if asked:
            found, span = meter.totals(), curve.coverage
            assert found is not None
            assert span is not None
            settled = curve.nanojoules(min(span[1], clock.now()))
            assert meter.ledger.settled() == settled
            assert found.total == pytest.approx(settled / 1e9)
    meter.stop()
    meter.ledger.settle()
    assert meter.ledger.settled() == curve.nanojoules(clock.now())
