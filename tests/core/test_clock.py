"""The real clock runs forward; the fake one moves only when told to."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energyopt.core.clock import Clock, FakeClock, MonotonicClock
from energyopt.core.units import Seconds


def test_real_time_passes() -> None:
    clock: Clock = MonotonicClock()
    begin, date = clock.now(), clock.utc()
    clock.sleep(Seconds(0.02))
    assert clock.now() - begin >= 0.02
    assert clock.utc().tzinfo is UTC
    assert clock.utc() >= date


@pytest.mark.parametrize("duration", [0.0, -5.0])
def test_no_sleep_without_a_duration(duration: float) -> None:
    begin = time.monotonic()
    MonotonicClock().sleep(Seconds(duration))
    assert time.monotonic() - begin < 1
    fake = FakeClock(3.0)
    fake.sleep(Seconds(duration))
    assert fake.now() == 3.0


@given(st.floats(-1e6, 1e6), st.lists(st.floats(0, 1e6)))
def test_fake_time_moves_by_what_it_is_told(start: float, durations: list[float]) -> None:
    clock = FakeClock(start, date=datetime(2026, 5, 1, tzinfo=UTC))
    expected = start
    for number, duration in enumerate(durations):
        if number % 2:
            clock.advance(duration)
        else:
            clock.sleep(Seconds(duration))
        expected += duration
    assert clock.now() == expected
    assert clock.utc() == datetime(2026, 5, 1, tzinfo=UTC) + timedelta(seconds=expected - start)


def test_fake_time_does_not_run_backward() -> None:
    clock = FakeClock()
    with pytest.raises(ValueError, match="cannot advance a clock by -1 s"):
        clock.advance(-1)
    assert clock.now() == 0.0
