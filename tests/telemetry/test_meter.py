"""The meter answers as the tuner and the service ask, or says that it cannot."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from energyopt.core.clock import FakeClock, MonotonicClock
from energyopt.core.errors import ConfigError, SensorUnavailableError
from energyopt.core.records import Phase, StepRecord, StepShare
from energyopt.core.results import Scope, Source, total_energy
from energyopt.core.units import Seconds
from telemetry.detect import detect
from telemetry.estimate import EstimatedCpuSource
from telemetry.fake import FakeSource
from telemetry.meter import Meter
from telemetry.ports import SensorId
from tuner.ports import Meter as MeterShape


def step(start: float, end: float, request: str, device: str = "GPU-fake") -> StepRecord:
    return StepRecord(Seconds(start), Seconds(end), (device,), (StepShare(request, Phase.DECODE, 1, 0),))


def running(*sources: FakeSource, clock: FakeClock, seconds: float = 5.0) -> Meter:
    meter = Meter(sources, clock, ("found",))
    for _ in range(round(seconds / 0.05)):
        clock.advance(0.05)
        meter.sampler.step()
    return meter


def test_has_the_shape_that_the_tuner_asks_for() -> None:
    shape: MeterShape = Meter((), FakeClock(), ("nothing found",))
    assert shape.readings(Seconds(0), Seconds(1)) == ()
    assert shape.split([], Seconds(0), Seconds(1)) is None
    assert shape.reasons == ("nothing found",)


def test_readings_and_split_of_a_window() -> None:
    clock = FakeClock()
    meter = running(FakeSource(clock), clock=clock)
    (reading,) = meter.readings(Seconds(1), Seconds(4))
    assert abs(reading.joules - 900.0) <= reading.error < 50.0
    split = meter.split([step(1, 2, "a"), step(2, 2.5, "b")], Seconds(1), Seconds(4))
    assert split is not None
    assert split.total == pytest.approx(reading.joules)
    assert split.decode == pytest.approx(450.0)
    assert split.idle == pytest.approx(450.0)


def test_waits_for_the_counter_to_pass_the_end() -> None:
    clock = FakeClock()
    meter = running(FakeSource(clock, tick=0.5), clock=clock)
    end = clock.now()
    readings = meter.readings(Seconds(1), end)
    assert len(readings) == 1
    assert clock.now() > end


def test_a_sensor_that_cannot_tell_leaves_no_partial_sum() -> None:
    clock = FakeClock()
    broken = threading.Event()
    bad = FakeSource(clock, fault=lambda sample: None if broken.is_set() else sample)
    good = FakeSource(clock, sensor=SensorId("GPU-2", Scope.GPU))
    meter = running(bad, good, clock=clock)
    broken.set()
    clock.advance(5.0)
    assert meter.readings(Seconds(1), clock.now()) == ()
    assert meter.split([], Seconds(1), clock.now()) is None
    assert meter.reasons[0] == "found"
    assert "GPU-fake" in meter.reasons[1]
    assert "did not answer" in meter.reasons[1]
    assert len(meter.readings(Seconds(1), Seconds(4))) == 2


def test_energy_of_a_request() -> None:
    clock = FakeClock()
    meter = running(FakeSource(clock, tick=0.1), clock=clock)
    meter.record(step(3.0, 4.0, "a"))
    meter.record(step(4.0, 5.0, "b"))
    a, b = meter.request_energy("a"), meter.request_energy("b")
    assert a is not None
    assert b is not None
    assert a.joules == pytest.approx(300.0, rel=0.02)
    assert b.joules == pytest.approx(300.0, rel=0.1)
    assert Source.COUNTER in a.sources
    assert meter.request_energy("unknown") is None
    totals = meter.totals()
    assert totals is not None
    assert totals.decode > 290


def test_request_energy_without_a_meter_is_none_not_zero() -> None:
    meter = Meter((), FakeClock())
    meter.record(step(0, 1, "a"))
    assert meter.request_energy("a") is None
    assert meter.totals() is None


def test_runs_on_threads_and_closes_its_sources() -> None:
    clock = MonotonicClock()
    source = FakeSource(clock, energy=lambda at: 300.0 * at)
    with Meter((source,), clock) as meter:
        start = clock.now()
        while clock.now() < start + 0.4:
            clock.sleep(Seconds(0.05))
        (reading,) = meter.readings(Seconds(start + 0.1), clock.now())
        assert reading.joules == pytest.approx(300.0 * reading.window, rel=0.01)
    assert source.closed
    meter.stop()
    reads = source.reads
    assert len(meter.readings(Seconds(start + 0.1), Seconds(start + 0.3))) == 1
    assert meter.readings(start, Seconds(start + 100)) == ()
    assert source.reads == reads, "a stopped meter must not open the driver again"


class TestDetect:
    def test_none_measures_nothing_and_says_so(self) -> None:
        found = detect("none", ["cpu:0"], FakeClock())
        assert found.sources == ()
        assert "set to none" in found.reasons[0]

    def test_unknown_kind_names_the_allowed_ones(self) -> None:
        with pytest.raises(ConfigError, match="auto, nvml, amdsmi, rapl, estimated, none, replay:FILE"):
            detect("guess", ["cpu:0"], FakeClock())

    def test_cpu_falls_back_from_rapl_to_the_estimate_and_says_why(self, tmp_path: Path) -> None:
        _cpu(tmp_path)
        found = detect("auto", ["cpu:0"], FakeClock(), root=tmp_path)
        assert [source.source for source in found.sources] == [Source.ESTIMATED]
        assert "No RAPL package" in found.reasons[0]
        assert "estimated" in found.reasons[1]

    def test_cpu_prefers_rapl(self, tmp_path: Path) -> None:
        _cpu(tmp_path)
        zone = tmp_path / "sys/class/powercap/intel-rapl:0"
        zone.mkdir(parents=True)
        (zone / "name").write_text("package-0\n")
        (zone / "energy_uj").write_text("1\n")
        found = detect("auto", ["cpu:0"], FakeClock(), root=tmp_path)
        assert [(source.source, source.sensor.scope) for source in found.sources] == [
            (Source.COUNTER, Scope.CPU_PACKAGE)
        ]
        explicit = detect("estimated", ["cpu:0"], FakeClock(), root=tmp_path)
        assert isinstance(explicit.sources[0], EstimatedCpuSource)

    def test_nothing_at_all_is_survived(self, tmp_path: Path) -> None:
        found = detect("auto", ["cpu:0"], FakeClock(), root=tmp_path)
        assert found.sources == ()
        assert len(found.reasons) == 2

    @pytest.mark.parametrize(
        ("kind", "device", "words"),
        [
            ("rapl", "cpu:0", "No RAPL package"),
            ("rapl", "GPU-1", "covers CPUs only"),
            ("estimated", "GPU-1", "covers CPUs only"),
            ("nvml", "cpu:0", "covers GPUs only"),
            ("amdsmi", "cpu:0", "covers GPUs only"),
        ],
    )
    def test_a_meter_asked_for_by_name_must_be_there(self, tmp_path: Path, kind: str, device: str, words: str) -> None:
        with pytest.raises(SensorUnavailableError, match=words):
            detect(kind, [device], FakeClock(), root=tmp_path)

    def test_a_gpu_without_meter_is_not_replaced_by_the_cpu(self, tmp_path: Path) -> None:
        _cpu(tmp_path)
        found = detect("auto", ["GPU-missing"], FakeClock(), root=tmp_path)
        assert found.sources == ()
        assert "GPU energy is not measured" in found.reasons[0]


def test_sums_over_sensors_name_every_source() -> None:
    clock = FakeClock()
    counted = FakeSource(clock, tick=0.1)
    guessed = FakeSource(clock, source=Source.ESTIMATED, sensor=SensorId("cpu:0", Scope.CPU_PACKAGE))
    total = total_energy(running(counted, guessed, clock=clock).readings(Seconds(1), Seconds(4)))
    assert total is not None
    assert total.label == "counter+estimated"


def _cpu(root: Path) -> None:
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text("processor : 0\nmodel name : Some CPU\n")
    (root / "proc/stat").write_text("cpu  1 2 3 4 5 6 7 8 9 10\n")
