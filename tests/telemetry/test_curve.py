"""The energy curve: exact where the counter is good, honest where it is not, and never falling."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.errors import SensorError
from energyopt.core.results import Scope, Source
from energyopt.core.units import Joules, Seconds, Watts
from telemetry.curve import EnergyCurve
from telemetry.ports import Sample, SensorId

GPU = SensorId("GPU-1", Scope.GPU)


def curve(source: Source = Source.COUNTER, max_power: float | None = 700.0, **kwargs: float) -> EnergyCurve:
    retention = Seconds(kwargs.pop("retention", 900.0))
    watts = None if max_power is None else Watts(max_power)
    return EnergyCurve(GPU, source, max_power=watts, retention=retention, **kwargs)


def sample(at: float, counter: float | None = None, power: float | None = None) -> Sample:
    return Sample(
        at=Seconds(at),
        counter=None if counter is None else Joules(counter),
        power=None if power is None else Watts(power),
    )


def feed(target: EnergyCurve, samples: Iterable[Sample]) -> EnergyCurve:
    for one in samples:
        target.add(one)
    return target


def ticking(rate: float, duration: float, counter: Callable[[float], float], power: float | None) -> list[Sample]:
    return [sample(i / rate, counter(i / rate), power) for i in range(round(duration * rate) + 1)]


def test_constant_power_of_300_watts_for_a_second_is_300_joules() -> None:
    """Zeus 0.16 de-duplicates equal samples and integrates to 0 J."""
    integrated = feed(curve(Source.INTEGRATED), [sample(i / 10, power=300.0) for i in range(11)])
    reading = integrated.window(Seconds(0), Seconds(1))
    assert reading.joules == pytest.approx(300.0)
    assert reading.source is Source.INTEGRATED


def test_power_steps_are_integrated_within_the_stated_error() -> None:
    """300/700/690 W steps: Zeus 0.16 said 320 J where about 770 were true."""

    def watts(at: float) -> float:
        return 300.0 if at < 0.5 else 700.0 if at < 1.0 else 690.0

    target = feed(curve(Source.INTEGRATED), [sample(i / 20, power=watts(i / 20)) for i in range(31)])
    reading = target.window(Seconds(0), Seconds(1.5))
    assert abs(reading.joules - (150.0 + 350.0 + 345.0)) <= reading.error
    assert reading.error < 0.15 * reading.joules


def test_counter_is_the_truth_within_half_a_percent_over_a_minute_with_lost_samples() -> None:
    """100 ms counter ticks, 20 Hz sampling with jitter, 5% lost samples, power that swings between 100 and 700 W."""
    rng = random.Random(7)

    def energy(at: float) -> float:
        return 400.0 * at + 300.0 / 1.3 * (1 - math.cos(1.3 * at))

    def watts(at: float) -> float:
        return 400.0 + 300.0 * math.sin(1.3 * at)

    target, at = curve(max_power=720.0), 0.0
    while at < 65.0:
        at += 0.05 + rng.uniform(-0.005, 0.005)
        if rng.random() >= 0.05:
            target.add(sample(at, energy(at - at % 0.1), watts(at)))
    for start in (1.0, 2.37, 4.01):
        reading = target.window(Seconds(start), Seconds(start + 60.0))
        truth = energy(start + 60.0) - energy(start)
        assert reading.joules == pytest.approx(truth, rel=0.005)
        assert abs(reading.joules - truth) <= reading.error
        assert reading.source is Source.COUNTER


def test_error_is_power_times_tick_at_each_edge() -> None:
    target = feed(curve(), ticking(20, 10, lambda at: 300.0 * (at - at % 0.1), 300.0))
    assert target.tick == pytest.approx(0.1, abs=0.01)
    assert target.window(Seconds(1), Seconds(9)).error == pytest.approx(2 * 300.0 * target.tick, rel=0.02)


def test_relative_error_of_the_sensor_is_added() -> None:
    target = feed(curve(Source.ESTIMATED, relative_error=0.5), ticking(10, 10, lambda at: 20.0 * at, None))
    reading = target.window(Seconds(1), Seconds(9))
    assert reading.source is Source.ESTIMATED
    assert 0.5 * reading.joules <= reading.error <= 0.55 * reading.joules


def test_tick_has_a_floor() -> None:
    """An inferred period of 0 made Zeus 0.16 poll in a busy loop (ml-energy/zeus#261)."""
    target = feed(curve(), ticking(1000, 1, lambda at: 300.0 * at, None))
    assert target.tick == 0.02


def test_counter_reset_in_a_window_is_bridged_by_power() -> None:
    """Zeus 0.16: -1,002,789.995 J."""

    def counter(at: float) -> float:
        return 1e6 + 300.0 * at if at < 5.0 else 300.0 * (at - 5.0)

    target = feed(curve(), ticking(20, 10, counter, 300.0))
    assert target.window(Seconds(1), Seconds(9)).joules == pytest.approx(2400.0, rel=0.01)
    assert target.counts["resets"] == 1


def test_counter_reset_without_power_books_the_new_value_with_its_doubt() -> None:
    def counter(at: float) -> float:
        return 1e6 + 300.0 * at if at < 5.02 else 300.0 * (at - 5.02)

    target = feed(curve(), ticking(20, 10, counter, None))
    reading = target.window(Seconds(1), Seconds(9))
    assert abs(reading.joules - 2400.0) <= reading.error
    assert target.counts["resets"] == 1


def test_backward_glitch_that_returns_is_held() -> None:
    """ROCm/amdsmi#115: the counter goes backward when read concurrently."""

    def counter(at: float) -> float:
        return 0.0 if at in (5.0, 5.05) else 1e6 + 300.0 * at

    target = feed(curve(), ticking(20, 10, counter, None))
    assert target.window(Seconds(1), Seconds(9)).joules == pytest.approx(2400.0, rel=1e-6)
    assert target.counts["backward"] == 2
    assert target.counts["resets"] == 0


def test_two_bad_samples_far_apart_do_not_make_a_reset() -> None:
    def counter(at: float) -> float:
        return 0.0 if at in (5.0, 5.5) else 1e6 + 300.0 * at

    samples = [one for one in ticking(20, 10, counter, None) if not (5.0 < one.at < 5.5)]
    target = feed(curve(), samples)
    assert target.window(Seconds(1), Seconds(9)).joules == pytest.approx(2400.0, rel=1e-6)
    assert target.counts["resets"] == 0


def test_reset_during_an_outage_states_how_much_may_be_lost() -> None:
    """The driver is reloaded while nobody can read: what was drawn before is gone."""

    def counter(at: float) -> float:
        return 1e6 + 300.0 * at if at < 5.5 else 300.0 * (at - 5.5)

    samples = [one for one in ticking(20, 10, counter, None) if not 3.0 < one.at < 6.0]
    reading = feed(curve(), samples).window(Seconds(1), Seconds(9))
    assert 2400.0 - reading.joules == pytest.approx(750.0, rel=0.05)
    assert abs(reading.joules - 2400.0) <= reading.error


@pytest.mark.parametrize("spike", [0xFFFFFFFF, 2**64 - 1, 0xFFFF * 1e3])
def test_implausible_spike_is_rejected(spike: float) -> None:
    """Syllo/nvtop#409, kepler#897: kilowatts and petajoules from one bad sample."""
    target = feed(curve(), ticking(20, 10, lambda at: spike if at == 5.0 else 1e4 + 300.0 * at, None))
    assert target.window(Seconds(1), Seconds(9)).joules == pytest.approx(2400.0, rel=1e-6)
    assert target.counts["implausible"] == 1


def test_stuck_counter_hands_over_to_integrated_power_and_says_so() -> None:
    """ROCm/rocm_smi_lib#180: the counter stands still although power flows."""
    target = feed(curve(), ticking(20, 20, lambda at: 300.0 * min(at, 5.0), 300.0))
    reading = target.window(Seconds(1), Seconds(19))
    assert reading.joules == pytest.approx(300.0 * 18, rel=0.01)
    assert reading.source is Source.INTEGRATED
    assert target.window(Seconds(1), Seconds(4)).source is Source.COUNTER
    assert target.counts["stuck"] == 1


def test_counter_that_recovers_is_trusted_again() -> None:
    def counter(at: float) -> float:
        return 300.0 * (at if at < 5.0 else 5.0 if at < 10.0 else at - 5.0)

    target = feed(curve(), ticking(20, 20, counter, 300.0))
    assert target.window(Seconds(1), Seconds(19)).joules == pytest.approx(300.0 * 18, rel=0.02)
    assert target.window(Seconds(12), Seconds(19)).source is Source.COUNTER


def test_counter_that_stands_still_at_no_power_is_not_stuck() -> None:
    target = feed(curve(), ticking(20, 10, lambda at: 1.0 if at < 0.1 else 2.0, 0.0))
    assert target.counts["stuck"] == 0
    assert target.window(Seconds(1), Seconds(9)).joules == 0.0


def test_counter_delta_across_lost_samples_is_kept() -> None:
    samples = ticking(20, 10, lambda at: 300.0 * at, 300.0)
    target = feed(curve(), [one for one in samples if not 3.0 < one.at < 6.0])
    assert target.window(Seconds(1), Seconds(9)).joules == pytest.approx(2400.0, rel=1e-6)


def test_hole_in_power_samples_is_unknown_not_zero() -> None:
    samples = [sample(at, power=300.0) for at in (0, 1, 2, 20, 21, 22)]
    target = feed(curve(Source.INTEGRATED), samples)
    assert target.window(Seconds(0), Seconds(2)).joules == 600.0
    assert not target.known(Seconds(1), Seconds(21))
    with pytest.raises(SensorError, match="lost samples"):
        target.window(Seconds(1), Seconds(21))


def test_windows_outside_the_coverage_are_refused() -> None:
    target = curve()
    with pytest.raises(SensorError, match="nothing yet"):
        target.window(Seconds(0), Seconds(1))
    feed(target, ticking(20, 5, lambda at: 300.0 * at, 300.0))
    for start, end in ((-1.0, 1.0), (1.0, 6.0), (7.0, 8.0)):
        with pytest.raises(SensorError, match="covers"):
            target.window(Seconds(start), Seconds(end))
    with pytest.raises(SensorError, match="must not end"):
        target.window(Seconds(3), Seconds(2))


def test_provisional_tail_is_added_to_the_error() -> None:
    target = feed(curve(), ticking(20, 5, lambda at: 300.0 * (at - at % 1.0), 300.0))
    settled = target.coverage
    assert settled is not None
    end = Seconds(settled[1] + 0.5)
    reading = target.provisional(Seconds(2), end)
    assert reading.joules == pytest.approx(300.0 * (end - 2.0), rel=0.01)
    assert reading.error >= 300.0 * 0.5
    assert reading.source is Source.INTEGRATED
    with pytest.raises(SensorError, match="settled until"):
        target.provisional(Seconds(2), Seconds(settled[1] + 60))


def test_crosscheck_compares_counter_and_power() -> None:
    """zeus#181: counter and integral disagree in the field; the ratio is published."""
    target = feed(curve(), ticking(20, 30, lambda at: 150.0 * at, 300.0))
    assert target.crosscheck == pytest.approx(0.5, rel=0.02)


def test_counter_of_a_wrong_rate_is_distrusted_and_power_integrated_instead() -> None:
    """ROCm/amdsmi#38: the counter ran at another rate than its resolution said. Zeus accepts a factor of nine."""
    target = feed(curve(), ticking(20, 60, lambda at: 90.0 * at, 300.0))
    assert target.counts["wrong_rate"] == 1
    reading = target.window(Seconds(15), Seconds(55))
    assert reading.joules == pytest.approx(300.0 * 40, rel=0.01)
    assert reading.source is Source.INTEGRATED
    assert target.crosscheck == pytest.approx(0.3, rel=0.02)


def test_counter_whose_rate_is_right_again_is_trusted_again() -> None:
    target = feed(curve(), ticking(20, 90, lambda at: 90.0 * min(at, 30.0) + 300.0 * max(0.0, at - 30.0), 300.0))
    assert target.window(Seconds(20), Seconds(30)).source is Source.INTEGRATED
    assert target.window(Seconds(60), Seconds(89)).source is Source.COUNTER
    assert target.window(Seconds(60), Seconds(89)).joules == pytest.approx(300.0 * 29, rel=0.01)


@pytest.mark.parametrize(("counted", "watts"), [(37.4, 65.4), (1.0, 4.0)])
def test_an_idle_sensors_offset_does_not_discredit_its_counter(counted: float, watts: float) -> None:
    """zeus#181: five seconds idle, 187 J by counter, 327 J by power."""
    target = feed(curve(), ticking(20, 60, lambda at: counted * at, watts))
    assert target.counts["wrong_rate"] == 0
    assert target.window(Seconds(15), Seconds(55)).source is Source.COUNTER


def test_memory_is_bounded() -> None:
    target = feed(curve(retention=10.0), ticking(20, 200, lambda at: 300.0 * at, 300.0))
    assert target.points <= 20 * 12
    assert target.total == pytest.approx(300.0 * 200, rel=0.01)
    assert target.window(Seconds(192), Seconds(198)).joules == pytest.approx(1800.0)


def test_invalid_values_are_refused() -> None:
    target = feed(curve(), ticking(20, 5, lambda at: 300.0 * at, 300.0))
    for bad in (sample(5.1, math.nan), sample(5.2, -5.0), sample(5.3, None, 1e9), sample(5.4, None, math.inf)):
        target.add(bad)
    target.add(sample(2.0, 600.0))
    assert target.counts["invalid_counter"] == 2
    assert target.counts["invalid_power"] == 2
    assert target.counts["order"] == 1


COUNTERS = st.one_of(st.none(), st.sampled_from([0.0, 65.535, 4294967.295, 1.8e16, math.nan, -1.0]), st.floats(0, 1e5))
POWERS = st.one_of(st.none(), st.sampled_from([0.0, 65535.0, 4294967.295, math.nan]), st.floats(0, 1000))
FAULTS = st.lists(st.tuples(st.floats(0.001, 5.0), COUNTERS, POWERS, st.booleans()), max_size=120)


@settings(max_examples=150, deadline=None)
@given(faults=FAULTS, max_power=st.sampled_from([None, 300.0, 700.0]), source=st.sampled_from(list(Source)))
def test_no_fault_sequence_makes_energy_negative_or_more_than_the_device_can_draw(
    faults: list[tuple[float, float | None, float | None, bool]], max_power: float | None, source: Source
) -> None:
    """Good samples (booleans) and faults in any order."""
    target, at, energy = curve(source, max_power), 0.0, 1000.0
    for step, counter, power, good in faults:
        at += step
        energy += 250.0 * step
        target.add(sample(at, energy, 250.0) if good else sample(at, counter, power))
        span = target.coverage
        if span is None:
            continue
        cuts = [span[0] + (span[1] - span[0]) * part / 7 for part in range(8)]
        values = [target.nanojoules(Seconds(min(cut, span[1]))) for cut in cuts]
        assert values == sorted(values)
        total = target.total
        assert total is not None
        assert 0 <= total <= 1.5 * (max_power or 10_000.0) * (2 * at + 10.0)
        if target.known(*span):
            reading = target.window(*span)
            assert reading.error >= 0
