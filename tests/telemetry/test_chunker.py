"""Pieces of settled energy: whole seconds of UTC, each joule once, nothing over a gap."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.clock import FakeClock
from energyopt.core.results import Scope, Source
from energyopt.core.units import Joules, Seconds, Watts
from telemetry.chunker import Chunker
from telemetry.curve import EnergyCurve
from telemetry.ports import EnergyChunk, Sample, SensorId

BEGIN = datetime(2026, 3, 1, 12, 0, 0, 400_000, tzinfo=UTC)
"""UTC when the clock shows 0: 0.4 s into a second, so whole seconds are at x.6 of the clock."""


def curve(source: Source = Source.COUNTER, device: str = "GPU-1") -> EnergyCurve:
    return EnergyCurve(SensorId(device, Scope.GPU), source, max_power=Watts(700.0))


def feed(target: EnergyCurve, start: float, end: float, watts: float = 300.0, step: float = 0.05) -> None:
    for index in range(round((end - start) / step)):
        at = start + index * step
        target.add(Sample(Seconds(at), Joules(1000.0 + watts * at), Watts(watts)))


def chunker(clock: FakeClock) -> Chunker:
    return Chunker(clock)


def test_pieces_are_whole_seconds_of_utc_and_sum_to_the_curve() -> None:
    clock = FakeClock(date=BEGIN)
    cutter, target = chunker(clock), curve()
    feed(target, 0.0, 10.0)
    clock.advance(10.0)
    chunks = cutter.cut([target]) + cutter.cut([target], last=True)
    inner = chunks[1:-1]
    assert all(chunk.end - chunk.start == pytest.approx(1.0) for chunk in inner)
    assert all(abs(round(c.date.timestamp(), 3) - round(c.date.timestamp())) < 1e-3 for c in chunks[1:])
    assert chunks[1].date - BEGIN == timedelta(seconds=0.6)
    assert sum(chunk.joules for chunk in chunks) == pytest.approx(target.total)
    assert all(chunk.mean_power == pytest.approx(300.0) for chunk in chunks)
    assert {chunk.source for chunk in chunks} == {Source.COUNTER}
    assert all(chunk.error >= chunk.edge > 0 for chunk in chunks)


def test_nothing_is_handed_on_twice() -> None:
    clock = FakeClock(date=BEGIN)
    cutter, target = chunker(clock), curve()
    feed(target, 0.0, 3.0)
    assert cutter.cut([target])
    assert not cutter.cut([target])
    assert cutter.cut([target], last=True)
    assert not cutter.cut([target], last=True)


def test_a_gap_has_no_piece_and_what_follows_has() -> None:
    clock = FakeClock(date=BEGIN)
    cutter, target = chunker(clock), curve(Source.INTEGRATED)
    for at in (*(i / 10 for i in range(31)), *(20 + i / 10 for i in range(31))):
        target.add(Sample(Seconds(at), None, Watts(300.0)))
    chunks = cutter.cut([target], last=True)
    assert not [chunk for chunk in chunks if 3.0 < chunk.start < 19.6]
    assert sum(chunk.end - chunk.start for chunk in chunks) == pytest.approx(2.6 + 2.4, abs=0.01)


def test_a_step_of_the_date_neither_repeats_nor_loses_energy() -> None:
    clock = FakeClock(date=BEGIN)
    cutter, target = chunker(clock), curve()
    feed(target, 0.0, 5.0)
    clock.advance(5.0)
    chunks = cutter.cut([target])
    clock._date += timedelta(seconds=3.25)
    feed(target, 5.0, 9.0)
    clock.advance(4.0)
    chunks += cutter.cut([target], last=True)
    assert sum(chunk.joules for chunk in chunks) == pytest.approx(target.total)
    assert all(one.end == other.start for one, other in pairwise(chunks))


def test_sensors_are_cut_on_their_own() -> None:
    clock = FakeClock(date=BEGIN)
    cutter, first, second = chunker(clock), curve(), curve(device="GPU-2")
    feed(first, 0.0, 4.0)
    feed(second, 0.0, 2.0)
    chunks = cutter.cut([first, second, curve(device="GPU-3")])
    assert {chunk.sensor.device for chunk in chunks} == {"GPU-1", "GPU-2"}
    assert max(chunk.end for chunk in chunks if chunk.sensor.device == "GPU-2") < 2.0


@settings(max_examples=50, deadline=None)
@given(stops=st.lists(st.floats(0.01, 3.0), min_size=1, max_size=12), zero=st.floats(0, 1))
def test_whenever_it_is_asked_every_joule_is_handed_on_once(stops: list[float], zero: float) -> None:
    clock = FakeClock(date=BEGIN + timedelta(seconds=zero))
    cutter, target = chunker(clock), curve()
    chunks: list[EnergyChunk] = []
    at = 0.0
    for stop in stops:
        feed(target, at, at + stop)
        clock.advance(stop)
        at += stop
        chunks += cutter.cut([target])
    chunks += cutter.cut([target], last=True)
    total = target.total or 0.0
    assert sum(chunk.joules for chunk in chunks) == pytest.approx(total, abs=1e-6)
    assert all(one.end == other.start for one, other in pairwise(chunks))
