"""What keeping the account costs the engine's thread, and whoever keeps it. Run with ``pytest -m bench -s``."""

from __future__ import annotations

import time

import pytest

from energyopt.core.clock import MonotonicClock
from energyopt.core.records import Phase, StepRecord, StepShare
from energyopt.core.units import Seconds
from telemetry.cost_model import FittedWeight
from telemetry.fake import FakeSource
from telemetry.meter import Meter
from tests.bench.figures import Report

pytestmark = pytest.mark.bench

REQUESTS = 64
STEPS = 400
MAX_ENGINE_SECONDS = 20e-6
"""For a step, on the thread that computes."""


def make_step(number: int, start: float, end: float) -> StepRecord:
    shares = tuple(StepShare(f"r{slot}", Phase.DECODE, 1, 500 + number + slot) for slot in range(REQUESTS - 1))
    last = StepShare(f"p{number}", Phase.PREFILL, 100, 0) if number % 4 == 0 else StepShare("r63", Phase.DECODE, 1, 9)
    return StepRecord(Seconds(start), Seconds(end), ("GPU-fake",), (*shares, last))


def test_a_step_of_64_requests(figure: Report) -> None:
    clock = MonotonicClock()
    engine = 0.0
    with Meter([FakeSource(clock)], clock, weigh=FittedWeight()) as meter:
        for number in range(STEPS):
            start = clock.now()
            time.sleep(0.005)
            step = make_step(number, start, clock.now())
            begun = time.thread_time()
            meter.record(step)
            engine += time.thread_time() - begun
    with Meter([FakeSource(clock)], clock, weigh=FittedWeight()) as meter:
        begun = time.thread_time()
        now = clock.now()
        for number in range(STEPS):
            meter.ledger.record(make_step(number, now - 5 + number * 0.005, now - 4.9999 + number * 0.005))
        meter.ledger.settle()
        booked = time.thread_time() - begun
    print(  # noqa: T201 - the figure is the point
        f"\na step of {REQUESTS} requests: {engine / STEPS * 1e6:.1f} us on the engine's thread, "
        f"{booked / STEPS * 1e6:.0f} us for its account beside it"
    )
    figure(f"account: a step of {REQUESTS} requests, engine's thread", engine / STEPS * 1e6, "us", "under 20")
    figure(f"account: a step of {REQUESTS} requests, booked beside it", booked / STEPS * 1e6, "us")
    assert engine / STEPS < MAX_ENGINE_SECONDS
