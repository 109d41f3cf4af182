"""A steady beat, and no sensor that holds up another."""

from __future__ import annotations

import threading
import time

from energyopt.core.clock import FakeClock, MonotonicClock
from energyopt.core.results import Scope
from energyopt.core.units import Seconds
from telemetry.beat import MAX_BACKOFF
from telemetry.fake import FakeSource
from telemetry.ports import Sample, SensorId
from telemetry.sampler import Sampler


def run_steps(sampler: Sampler, clock: FakeClock, seconds: float, step: float = 0.01) -> None:
    for _ in range(round(seconds / step)):
        clock.advance(step)
        sampler.step()


def test_reads_on_the_beat() -> None:
    clock = FakeClock()
    source = FakeSource(clock)
    run_steps(Sampler([source], clock, period=Seconds(0.05)), clock, 10.0)
    assert 195 <= source.reads <= 202


def test_a_reading_that_ends_before_the_next_beat_misses_none() -> None:
    clock = FakeClock()

    def slow(sample: Sample) -> Sample:
        clock.advance(0.04)
        return sample

    source = FakeSource(clock, fault=slow)
    sampler = Sampler([source], clock, period=Seconds(0.05))
    while clock.now() < 10.0:
        clock.advance(0.001)
        sampler.step()
    assert source.reads >= 199, "one that counted for the beat it was close to would be read at half the rate"
    assert sampler.channels[0].overruns == 0


def test_a_failing_source_is_asked_less_often_and_found_again() -> None:
    """nvidia-container-toolkit#48: Unknown Error; the last value must not stay for ever."""
    clock = FakeClock()
    broken = threading.Event()
    bad = FakeSource(clock, fault=lambda sample: None if broken.is_set() else sample)
    good = FakeSource(clock, sensor=SensorId("GPU-2", Scope.GPU))
    sampler = Sampler([bad, good], clock, period=Seconds(0.05))
    run_steps(sampler, clock, 1.0)
    broken.set()
    before = bad.reads
    run_steps(sampler, clock, 60.0)
    channel, other = sampler.channels
    assert bad.reads - before < 20
    assert not channel.up
    assert channel.failure is not None
    assert "did not answer" in channel.failure
    assert channel.errors == bad.reads - before
    assert channel.age is not None
    assert channel.age > 59
    assert other.up
    assert other.errors == 0
    broken.clear()
    run_steps(sampler, clock, MAX_BACKOFF + 0.1)
    recovered = sampler.channels[0]
    assert recovered.up
    assert recovered.failure is None


def test_an_unexpected_exception_is_kept_not_lost() -> None:
    def explode(sample: Sample) -> Sample | None:
        raise RuntimeError("binding went wrong")

    clock = FakeClock()
    sampler = Sampler([FakeSource(clock, fault=explode)], clock)
    sampler.poll()
    assert sampler.channels[0].failure == "RuntimeError: binding went wrong"


def test_overruns_are_counted_and_not_caught_up() -> None:
    clock = FakeClock()

    def slow(sample: Sample) -> Sample:
        clock.advance(0.5)
        return sample

    source = FakeSource(clock, fault=slow)
    sampler = Sampler([source], clock, period=Seconds(0.05))
    run_steps(sampler, clock, 1.0)
    assert sampler.channels[0].overruns >= 2
    assert source.reads <= 21  # 100 steps of 10 ms; each reading takes half a second of the clock


def test_a_hanging_driver_delays_nobody() -> None:
    """A driver call of 500 ms."""
    release = threading.Event()

    def hang(sample: Sample) -> Sample:
        release.wait(5.0)
        return sample

    clock = MonotonicClock()
    stuck = FakeSource(clock, fault=hang)
    quick = FakeSource(clock, sensor=SensorId("GPU-2", Scope.GPU))
    with Sampler([stuck, quick], clock, period=Seconds(0.01)) as sampler:
        begun = time.monotonic()
        while quick.reads < 10 and time.monotonic() - begun < 5.0:
            time.sleep(0.005)
        polled = time.monotonic()
        sampler.poll()
        assert time.monotonic() - polled < 1.0
        release.set()
    assert quick.reads >= 10
    assert not sampler.running


def test_start_and_stop_are_idempotent() -> None:
    clock = MonotonicClock()
    sampler = Sampler([FakeSource(clock)], clock, period=Seconds(0.01))
    sampler.start()
    sampler.start()
    sampler.stop()
    sampler.stop()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("energyopt-sensor")]
