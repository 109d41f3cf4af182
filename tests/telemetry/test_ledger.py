"""The running account agrees with the sensor to the nanojoule, whatever the order in which things become known."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.records import Phase, StepRecord, StepShare
from energyopt.core.results import Scope, Source
from energyopt.core.units import Joules, Seconds, Watts
from telemetry import ledger as ledger_module
from telemetry.curve import EnergyCurve
from telemetry.ledger import Ledger
from telemetry.ports import Sample, SensorId
from telemetry.timeline import NANOJOULES

GPU = SensorId("GPU-1", Scope.GPU)


def new_curve(sensor: SensorId = GPU, retention: float = 900.0) -> EnergyCurve:
    return EnergyCurve(sensor, Source.COUNTER, max_power=Watts(700.0), retention=Seconds(retention))


def feed(curve: EnergyCurve, start: int, end: int, watts: float = 100.0) -> None:
    """Samples every 100 ms from tick ``start`` to before ``end``."""
    for tick in range(start, end):
        curve.add(Sample(at=Seconds(tick / 10), counter=Joules(1000 + watts * tick / 10), power=Watts(watts)))


def step(start: float, end: float, *requests: str, phase: Phase = Phase.DECODE) -> StepRecord:
    shares = tuple(StepShare(request, phase, 1, 0) for request in requests)
    return StepRecord(Seconds(start), Seconds(end), ("GPU-1",), shares)


def test_phases_and_idle_accumulate_as_the_curve_settles() -> None:
    curve = new_curve()
    ledger = Ledger([curve])
    feed(curve, 0, 50)
    ledger.record(step(1, 2, "a", phase=Phase.PREFILL))
    ledger.record(step(2, 3, "a", "b"))
    ledger.settle()
    split = ledger.split()
    assert split is not None
    assert (split.prefill, split.decode, split.idle) == pytest.approx((100.0, 100.0, 90.0))
    energy = ledger.request_energy("a")
    assert energy is not None
    assert energy.joules == pytest.approx(150.0)
    assert energy.sources == (Source.COUNTER,)
    assert 0 < energy.error < 30.0


def test_time_after_the_last_step_is_not_idle_before_it_is_old() -> None:
    curve = new_curve()
    ledger = Ledger([curve])
    ledger.record(step(1, 2, "a"))
    feed(curve, 0, 200)
    ledger.settle()
    split = ledger.split()
    assert split is not None
    assert split.idle == pytest.approx(90.0)
    feed(curve, 200, 600)
    ledger.settle()
    split = ledger.split()
    assert split is not None
    assert split.idle == pytest.approx(90.0 + 100.0 * (59.9 - ledger_module.IDLE_AFTER - 2.0))


def test_a_request_that_just_ended_is_told_by_the_last_power_with_its_error() -> None:
    curve = new_curve()
    ledger = Ledger([curve])
    feed(curve, 0, 31)
    ledger.record(step(2.0, 3.4, "a"))
    ledger.settle()
    live = ledger.request_energy("a")
    assert live is not None
    assert live.joules == pytest.approx(140.0)
    assert live.sources == (Source.COUNTER, Source.INTEGRATED)
    feed(curve, 31, 41)
    ledger.settle()
    settled = ledger.request_energy("a")
    assert settled is not None
    assert settled.joules == pytest.approx(140.0)
    assert settled.sources == (Source.COUNTER,)
    assert settled.error < live.error


def test_what_is_not_known_is_none() -> None:
    curve = new_curve()
    ledger = Ledger([curve])
    assert ledger.request_energy("a") is None
    ledger.record(step(1, 2, "a"))
    assert ledger.request_energy("a") is None
    assert ledger.request_energy("other") is None
    assert Ledger([]).split() is None
    feed(curve, 0, 10)
    ledger.record(step(100, 200, "b"))
    assert ledger.request_energy("b") is None


def test_each_device_charges_its_own_steps() -> None:
    first, second = new_curve(), new_curve(SensorId("GPU-2", Scope.GPU))
    ledger = Ledger([first, second])
    feed(first, 0, 50, 100.0)
    feed(second, 0, 50, 300.0)
    ledger.record(step(1, 2, "a"))
    ledger.record(StepRecord(Seconds(1), Seconds(2), ("GPU-2",), (StepShare("b", Phase.DECODE, 1, 0),)))
    ledger.record(StepRecord(Seconds(3), Seconds(4), ("GPU-1", "GPU-2"), (StepShare("both", Phase.DECODE, 1, 0),)))
    ledger.settle()
    joules = [energy.joules for name in ("a", "b", "both") if (energy := ledger.request_energy(name))]
    assert joules == pytest.approx([100.0, 300.0, 400.0])


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "MAX_PENDING", 100)
    monkeypatch.setattr(ledger_module, "MAX_REQUESTS", 50)
    ledger = Ledger([new_curve()])
    for index in range(400):
        ledger.record(step(index, index + 1, f"r{index}"))
    account = ledger._accounts[0]
    assert len(account.pending) == 100
    assert len(account.requests) <= 50
    assert set(account.requests) >= {f"r{index}" for index in range(370, 400)}, "the newest are kept"
    assert ledger.dropped == 300


def test_steps_are_settled_without_anyone_asking() -> None:
    curve = new_curve()
    ledger = Ledger([curve])
    feed(curve, 0, 70)
    for index in range(ledger_module.SETTLE_EVERY * 2):
        ledger.record(step(1 + index / 100, 1 + (index + 1) / 100, "a"))
    assert len(ledger._accounts[0].pending) < ledger_module.SETTLE_EVERY
    assert ledger.late == 0


def test_forgotten_time_is_booked_as_idle() -> None:
    curve = new_curve(retention=10.0)
    ledger = Ledger([curve])
    feed(curve, 0, 20)
    ledger.record(step(1.0, 1.5, "a"))
    ledger.settle()
    feed(curve, 20, 1500)
    ledger.record(step(148.0, 149.0, "b"))
    ledger.settle()
    span = curve.coverage
    assert span is not None
    assert ledger.settled() == curve.nanojoules(Seconds(149.0))


@settings(max_examples=60, deadline=None)
@given(
    plan=st.lists(
        st.tuples(st.floats(0, 2), st.floats(0, 1.5), st.lists(st.sampled_from("abc"), max_size=3), st.integers(0, 20)),
        max_size=30,
    )
)
def test_the_account_equals_the_sensor_in_any_order_of_events(
    plan: list[tuple[float, float, list[str], int]],
) -> None:
    """Steps in order, overlapping, late; samples before and after them; settled at any time."""
    curve = new_curve()
    ledger = Ledger([curve])
    tick, at = 0, 0.5
    for gap, length, requests, samples in plan:
        at += gap - 0.5
        at = max(0.1, at)
        feed(curve, tick, tick + samples)
        tick += samples
        ledger.record(step(at, at + length, *requests))
        at += length
        ledger.settle()
        until = ledger._accounts[0].until
        span = curve.coverage
        assert span is not None or until is None
        if until is not None and span is not None:
            assert ledger.settled() == curve.nanojoules(until)
    total = ledger.split()
    assert total is not None
    assert total.total == pytest.approx(ledger.settled() / NANOJOULES)
