"""Energy of a window from samples: edges, gaps, resets, stamps; and the page it comes from."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.clock import MonotonicClock
from energyopt.core.errors import SensorError
from energyopt.core.results import Scope, Source
from energyopt.core.units import Seconds
from tuner.replay.fake import FakeServer
from tuner.replay.page import PageMeter, parse_page
from tuner.replay.power import MAX_GAP, PowerSample, energy_of


def samples(*points: tuple[float, float | None, float | None]) -> list[PowerSample]:
    return [PowerSample(Seconds(t), w, j) for t, w, j in points]


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.floats(0.01, 2.9), min_size=4, max_size=40),
    st.floats(1, 1000),
    st.floats(-20, 20),
    st.floats(0.05, 0.95),
)
def test_linear_power_is_integrated_exactly(gaps: list[float], base: float, slope: float, part: float) -> None:
    times = [sum(gaps[:index]) for index in range(len(gaps) + 1)]
    power = [max(0.0, base + abs(slope) * t) for t in times]
    start, end = times[1] * part, times[-2] + (times[-1] - times[-2]) * part
    reading = energy_of(
        "G", samples(*((t, p, None) for t, p in zip(times, power, strict=True))), Seconds(start), Seconds(end)
    ).reading
    assert reading is not None
    exact = base * (end - start) + abs(slope) * (end**2 - start**2) / 2
    assert reading.joules == pytest.approx(exact, rel=1e-6)
    assert reading.source is Source.INTEGRATED


def test_a_counter_is_better_than_power() -> None:
    found = energy_of("G", samples(*((t, 100.0, 50.0 * t) for t in range(12))), Seconds(1.5), Seconds(9.5))
    assert found.reading is not None
    assert found.reading.joules == pytest.approx(400.0)
    assert found.reading.source is Source.COUNTER
    assert found.notes[0].startswith("crosscheck")


@pytest.mark.parametrize(
    ("points", "code"),
    [
        ([(0, 1, None)], "few_samples"),
        ([(1.2, 1, None), (2, 1, None), (12, 1, None)], "not_bracketed"),
        ([(0, 1, None), (2, 1, None), (8, 1, None)], "not_bracketed"),
        ([(0, 1, None), (2, 1, None), (6, 1, None), (8, 1, None), (11, 1, None)], "gap"),
        ([(0, 1, None), (2, math.nan, None), (4, 1, None), (6, 1, None), (8, 1, None), (10, 1, None)], "bad_sample"),
        ([(t, None, j) for t, j in ((0, 50), (2, 60), (4, 5), (6, 9), (8, 12), (10, 15))], "counter_reset"),
        ([], "few_samples"),
    ],
)
def test_an_invalid_window_has_a_code_and_no_joules(
    points: list[tuple[float, float | None, float | None]], code: str
) -> None:
    found = energy_of("G", samples(*points), Seconds(1), Seconds(9))
    assert found.reading is None
    assert found.faults[0].split(":")[0] == code


def test_a_reset_counter_is_bridged_by_power() -> None:
    points = [(t, 10.0, float(j)) for t, j in ((0, 50), (2, 70), (4, 5), (6, 25), (8, 45), (10, 65))]
    found = energy_of("G", samples(*points), Seconds(1), Seconds(9))
    assert found.reading is not None
    assert found.reading.joules == pytest.approx(80.0)
    assert found.notes[0].startswith("counter_reset")


def test_equal_stamps_are_averaged() -> None:
    points = [(0.0, 10.0, None), (2.0, 5.0, None), (2.0, 15.0, None), (4.0, 10.0, None)]
    reading = energy_of("G", samples(*points), Seconds(1), Seconds(3)).reading
    assert reading is not None
    assert reading.joules == pytest.approx(20.0)


@settings(deadline=None, max_examples=50)
@given(st.floats(0.1, 6.0))
def test_a_gap_of_three_seconds_is_the_limit(gap: float) -> None:
    points = [(0.0, 5.0, None), (1.0, 5.0, None), (1.0 + gap, 5.0, None), (2.0 + gap, 5.0, None)]
    found = energy_of("G", samples(*points), Seconds(0.5), Seconds(1.5 + gap))
    assert (found.reading is not None) == (1.0 + gap - 1.0 <= MAX_GAP)


def test_our_own_page_is_read_without_counting_twice() -> None:
    page = """
energyopt_gpu_energy_joules_total{gpu_uuid="G",scope="gpu",source="counter"} 10
energyopt_gpu_energy_joules_total{gpu_uuid="G",scope="gpu",source="integrated"} 2
energyopt_gpu_energy_joules_total{gpu_uuid="G",scope="memory",source="counter"} 4
energyopt_cpu_energy_joules_total{package="0",domain="package",source="counter"} 7
energyopt_cpu_energy_joules_total{package="0",domain="dram",source="counter"} 3
"""
    found = parse_page(page, Seconds(1))
    assert {device: (scope, one.joules) for device, (scope, one) in found.items()} == {
        "G": (Scope.GPU, 12.0),
        "cpu:0:package": (Scope.CPU_PACKAGE, 7.0),
        "cpu:0:dram": (Scope.DRAM, 3.0),
    }


def test_what_is_no_page_is_refused() -> None:
    with pytest.raises(SensorError, match="cannot be read"):
        parse_page("<html>\n{{{", Seconds(0))


async def test_a_page_is_sampled_while_it_runs(server: FakeServer) -> None:
    import asyncio

    page = (
        'DCGM_FI_DEV_POWER_USAGE{{gpu="0",UUID="G"}} 200\nDCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{gpu="0",UUID="G"}} {}\n'
    )
    clock = MonotonicClock()
    server.pages["/dcgm"] = page.format(0)
    meter = PageMeter(server.url + "/dcgm", clock, period=Seconds(0.05))
    begun = clock.now()
    await asyncio.to_thread(meter.start)
    try:
        for _ in range(20):
            await asyncio.sleep(0.05)
            server.pages["/dcgm"] = page.format((clock.now() - begun) * 200e3)
        now = clock.now()
        (reading,) = meter.readings(Seconds(now - 0.7), Seconds(now - 0.2))
        assert reading.joules == pytest.approx(100.0, rel=0.5)
        with pytest.raises(SensorError, match="not_bracketed"):
            meter.readings(Seconds(begun - 5), now)
    finally:
        await asyncio.to_thread(meter.stop)


async def test_a_window_that_ends_now_waits_for_the_sample_beyond_it(server: FakeServer) -> None:
    import asyncio

    clock = MonotonicClock()
    server.pages["/dcgm"] = 'DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="G"} 200\n'
    meter = PageMeter(server.url + "/dcgm", clock, period=Seconds(0.1))
    await asyncio.to_thread(meter.start)
    try:
        start = clock.now()
        await asyncio.sleep(0.02)
        (reading,) = await asyncio.to_thread(meter.readings, start, end := clock.now())
        assert reading.joules == pytest.approx(200 * (end - start))
        del server.pages["/dcgm"]
        with pytest.raises(SensorError, match="beyond the end"):
            await asyncio.to_thread(meter.readings, start, Seconds(clock.now() + 0.05))
    finally:
        await asyncio.to_thread(meter.stop)


async def test_a_page_without_devices_is_refused(server: FakeServer) -> None:
    import asyncio

    server.pages["/empty"] = "up 1\n"
    with pytest.raises(SensorError, match="has none of"):
        await asyncio.to_thread(PageMeter(server.url + "/empty", MonotonicClock()).start)
    with pytest.raises(SensorError, match="cannot be read"):
        await asyncio.to_thread(PageMeter("http://127.0.0.1:9/x", MonotonicClock()).start)
