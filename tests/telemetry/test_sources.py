"""What every source promises, whatever stands behind it; then what is special to one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from energyopt.core.clock import FakeClock
from energyopt.core.errors import ConfigError, SensorError, SensorUnavailableError
from energyopt.core.results import Scope, Source
from energyopt.core.units import Seconds, Watts
from telemetry.cpu import CpuInfo, describe_cpu, find_part, load_parts
from telemetry.curve import EnergyCurve
from telemetry.detect import detect
from telemetry.estimate import IDLE_SHARE, EstimatedCpuSource
from telemetry.fake import FakeSource
from telemetry.ports import PowerSource, SensorId
from telemetry.rapl import find_rapl
from telemetry.replay import ReplaySource, read_recording

EPYC = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 1
model name\t: AMD EPYC Processor
physical id\t: 0
siblings\t: 2
cpu cores\t: 2
flags\t\t: fpu hypervisor

"""
XEON = """processor\t: {index}
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 106
model name\t: Intel(R) Xeon(R) Platinum 8380 CPU @ 2.30GHz
physical id\t: {socket}
siblings\t: 80
cpu cores\t: 40
flags\t\t: fpu

"""


class Machine:
    """A file tree like ``/`` whose counters follow a fake clock."""

    def __init__(self, root: Path, clock: FakeClock) -> None:
        self.root, self.clock = root, clock
        self.busy = 0.0
        (root / "proc").mkdir()
        (root / "proc/cpuinfo").write_text(EPYC + EPYC.replace(": 0\nvendor", ": 1\nvendor"))
        self.stat()

    def stat(self) -> None:
        ticks = round(self.busy * os.sysconf("SC_CLK_TCK"))
        (self.root / "proc/stat").write_text(f"cpu  {ticks} 0 0 12345 99 0 0 7777 0 0\ncpu0 1 2 3\n")

    def zone(self, name: str, label: str, raw: int, limit: int | None = 262_143_328_850) -> Path:
        path = self.root / "sys/class/powercap" / name
        path.mkdir(parents=True, exist_ok=True)
        (path / "name").write_text(label + "\n")
        (path / "energy_uj").write_text(f"{raw}\n")
        if limit is not None:
            (path / "max_energy_range_uj").write_text(f"{limit}\n")
        return path


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(100.0)


@pytest.fixture
def machine(tmp_path: Path, clock: FakeClock) -> Machine:
    return Machine(tmp_path, clock)


Make = Callable[[Machine], tuple[PowerSource, Callable[[], None], Callable[[], None]]]
"""A source, a way to let a second pass, a way to break it."""


def fake(machine: Machine) -> tuple[PowerSource, Callable[[], None], Callable[[], None]]:
    broken = threading.Event()
    source = FakeSource(machine.clock, fault=lambda sample: None if broken.is_set() else sample)
    return source, lambda: machine.clock.advance(1.0), broken.set


def rapl(machine: Machine) -> tuple[PowerSource, Callable[[], None], Callable[[], None]]:
    zone = machine.zone("intel-rapl:0", "package-0", 5_000_000)
    counter = zone / "energy_uj"

    def second() -> None:
        machine.clock.advance(1.0)
        counter.write_text(f"{int(counter.read_text()) + 80_000_000}\n")

    return find_rapl(machine.clock, machine.root / "sys/class/powercap")[0], second, counter.unlink


def estimated(machine: Machine) -> tuple[PowerSource, Callable[[], None], Callable[[], None]]:
    def second() -> None:
        machine.clock.advance(1.0)
        machine.busy += 1.0
        machine.stat()

    return EstimatedCpuSource(machine.clock, root=machine.root), second, (machine.root / "proc/stat").unlink


def replay(machine: Machine) -> tuple[PowerSource, Callable[[], None], Callable[[], None]]:
    path = machine.root / "recording.csv"
    rows = "".join(f"{at},{300 * at},300\n" for at in range(12))
    path.write_text("at,counter,power\n" + rows)
    source = ReplaySource(machine.clock, path, SensorId("GPU-1", Scope.GPU), max_power=Watts(700.0))
    return source, lambda: machine.clock.advance(1.0), lambda: machine.clock.advance(100.0)


@pytest.mark.parametrize("make", [fake, rapl, estimated, replay], ids=lambda make: make.__name__)
class TestContract:
    def test_samples_feed_a_curve(self, make: Make, machine: Machine) -> None:
        source, second, _ = make(machine)
        curve = EnergyCurve.of(source)
        for _ in range(8):
            second()
            sample = source.read()
            assert sample.at == machine.clock.now()
            assert sample.counter is not None or sample.power is not None
            curve.add(sample)
        reading = curve.window(Seconds(104.0), Seconds(107.0))
        assert reading.joules > 0
        assert reading.source is source.source
        assert reading.device == source.sensor.device
        if source.max_power is not None:
            assert reading.mean_power is not None
            assert reading.mean_power <= source.max_power * 1.001

    def test_a_failure_is_a_sensor_error_that_names_the_place(self, make: Make, machine: Machine) -> None:
        source, second, breaks = make(machine)
        second()
        source.read()
        breaks()
        with pytest.raises(SensorError, match=r"[a-zA-Z]"):
            source.read()

    def test_close_is_idempotent(self, make: Make, machine: Machine) -> None:
        source, _, _ = make(machine)
        source.close()
        source.close()

    def test_states_its_error(self, make: Make, machine: Machine) -> None:
        source, _, _ = make(machine)
        assert 0 <= source.relative_error <= 1
        if source.source is Source.ESTIMATED:
            assert source.relative_error >= 0.3


class TestRapl:
    def test_packages_and_dram_only(self, machine: Machine, clock: FakeClock) -> None:
        """psys contains the packages; core, uncore and the mmio twin are counted already (Zeus adds psys)."""
        machine.zone("intel-rapl:0", "package-0", 1)
        machine.zone("intel-rapl:0:0", "core", 1)
        machine.zone("intel-rapl:0:1", "uncore", 1)
        machine.zone("intel-rapl:0:2", "dram", 1)
        machine.zone("intel-rapl:0/intel-rapl:0:2", "dram", 1)
        machine.zone("intel-rapl:1", "package-1", 1)
        machine.zone("intel-rapl:2", "psys", 1)
        machine.zone("intel-rapl-mmio:0", "package-0", 1)
        found = find_rapl(clock, machine.root / "sys/class/powercap")
        assert {(source.sensor.device, source.sensor.scope) for source in found} == {
            ("cpu:0", Scope.CPU_PACKAGE),
            ("cpu:0", Scope.DRAM),
            ("cpu:1", Scope.CPU_PACKAGE),
        }
        assert len(found) == 3

    def test_wrap_is_unrolled_by_the_range(self, machine: Machine, clock: FakeClock) -> None:
        """mlco2/codecarbon#309, pyRAPL#19: negative energy at the wrap. Zeus: +/- 262 kJ."""
        limit = 262_143_328_850
        zone = machine.zone("intel-rapl:0", "package-0", limit - 2_000_000, limit)
        source = find_rapl(clock, machine.root / "sys/class/powercap")[0]
        clock.advance(1.0)
        (zone / "energy_uj").write_text("3000000\n")
        assert source.read().counter == pytest.approx((limit - 2_000_000 + 5_000_000) / 1e6)

    def test_wrap_with_unreadable_range_is_never_negative_nor_invented(
        self, machine: Machine, clock: FakeClock
    ) -> None:
        """mlco2/codecarbon#1309."""
        zone = machine.zone("intel-rapl:0", "package-0", 900_000_000, None)
        source = find_rapl(clock, machine.root / "sys/class/powercap")[0]
        curve, raw = EnergyCurve.of(source), 900_000_000
        for tick in range(200):
            clock.advance(0.05)
            raw = 1_000_000 if tick == 100 else raw + 4_000_000
            (zone / "energy_uj").write_text(f"{raw}\n")
            curve.add(source.read())
        reading = curve.window(Seconds(101.0), Seconds(109.0))
        assert abs(reading.joules - 640.0) <= reading.error
        assert curve.counts["resets"] == 1

    def test_several_wraps_may_have_passed_after_a_long_pause(self, machine: Machine, clock: FakeClock) -> None:
        zone = machine.zone("intel-rapl:0", "package-0", 60_000_000, 65_700_000)
        source = find_rapl(clock, machine.root / "sys/class/powercap")[0]
        clock.advance(3600.0)
        (zone / "energy_uj").write_text("10000000\n")
        assert source.read().counter == pytest.approx(10.0)  # fell from 60 J: the curve decides what that means

    def test_reset_of_the_counter_is_not_taken_for_a_wrap(self, machine: Machine, clock: FakeClock) -> None:
        """After suspend the counter restarts: adding the range would be 262 kJ in 50 ms."""
        zone = machine.zone("intel-rapl:0", "package-0", 9_000_000)
        source = find_rapl(clock, machine.root / "sys/class/powercap")[0]
        curve, raw = EnergyCurve.of(source), 9_000_000
        for tick in range(100):
            clock.advance(0.05)
            raw = 1_000 if tick == 50 else raw + 4_000_000
            (zone / "energy_uj").write_text(f"{raw}\n")
            curve.add(source.read())
        total = curve.total
        assert total is not None
        assert total <= 450.0

    def test_absent_and_unreadable_are_explained(
        self, machine: Machine, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(SensorUnavailableError, match="No RAPL package"):
            find_rapl(clock, machine.root / "sys/class/powercap")
        zone = machine.zone("intel-rapl:0", "package-0", 1)
        (zone / "energy_uj").chmod(0)
        real = Path.open

        def refused(self: Path, mode: str = "r") -> object:
            if self.name == "energy_uj":
                raise PermissionError(13, "Permission denied", str(self))
            return real(self, mode)

        monkeypatch.setattr(Path, "open", refused)
        with pytest.raises(SensorUnavailableError, match="setcap cap_dac_read_search"):
            find_rapl(clock, machine.root / "sys/class/powercap")


class TestEstimate:
    @pytest.mark.parametrize(("load", "share"), [(0.0, IDLE_SHARE), (1.0, (1 + IDLE_SHARE) / 2), (2.0, 1.0)])
    def test_energy_is_linear_in_utilisation(
        self, machine: Machine, clock: FakeClock, load: float, share: float
    ) -> None:
        source = EstimatedCpuSource(clock, root=machine.root)
        clock.advance(10.0)
        machine.busy += 10.0 * load
        machine.stat()
        sample = source.read()
        assert source.max_power is not None
        assert sample.counter == pytest.approx(10.0 * source.max_power * share)
        assert sample.power == pytest.approx(source.max_power * share)

    def test_energy_does_not_depend_on_how_often_it_is_read(self, machine: Machine, clock: FakeClock) -> None:
        often, once = (EstimatedCpuSource(clock, root=machine.root) for _ in range(2))
        for _ in range(97):
            clock.advance(0.007)
            machine.busy += 0.009
            machine.stat()
            last = often.read()
        assert once.read().counter == pytest.approx(last.counter)

    def test_says_what_it_rests_on(self, machine: Machine, clock: FakeClock) -> None:
        note = EstimatedCpuSource(clock, root=machine.root).note
        assert "estimated" in note
        assert "AMD EPYC 7763" in note

    def test_unreadable_stat_is_unavailable(self, machine: Machine, clock: FakeClock) -> None:
        (machine.root / "proc/stat").write_text("nonsense\n")
        with pytest.raises(SensorUnavailableError, match="cannot be estimated"):
            EstimatedCpuSource(clock, root=machine.root)


class TestCpu:
    def test_masked_name_is_known_by_its_model_number(self, tmp_path: Path) -> None:
        (tmp_path / "cpuinfo").write_text(EPYC * 2)
        power = describe_cpu(tmp_path / "cpuinfo")
        assert power.watts == pytest.approx(280.0 * 2 / 128)
        assert power.cpus == 2

    def test_bare_metal_counts_every_socket(self, tmp_path: Path) -> None:
        listing = "".join(XEON.format(index=index, socket=index % 2) for index in range(160))
        (tmp_path / "cpuinfo").write_text(listing)
        assert describe_cpu(tmp_path / "cpuinfo").watts == pytest.approx(540.0)

    def test_unknown_cpu_is_generic_and_says_so(self, tmp_path: Path) -> None:
        (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name : Mystery 9000\n\nprocessor : 1\n")
        power = describe_cpu(tmp_path / "cpuinfo")
        assert power.watts == 7.0
        assert "unknown CPU 'Mystery 9000'" in power.basis

    @pytest.mark.parametrize("content", ["", "Hardware : something\n"])
    def test_listing_without_processors_is_unavailable(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "cpuinfo").write_text(content)
        with pytest.raises(SensorUnavailableError):
            describe_cpu(tmp_path / "cpuinfo")

    @pytest.mark.parametrize(
        ("name", "part"),
        [
            ("AMD EPYC 9654 96-Core Processor", "AMD EPYC 9654"),
            ("AMD EPYC 7R13 Processor", "AMD EPYC 7763"),
            ("Intel(R) Xeon(R) Platinum 8488C", "Intel Xeon Platinum 8480+"),
            ("Intel(R) Xeon(R) Platinum 8259CL CPU @ 2.50GHz", "Intel Xeon Platinum 8280"),
            ("Intel(R) Xeon(R) CPU E5-2686 v4 @ 2.30GHz", "Intel Xeon E5-2699 v4"),
            ("13th Gen Intel(R) Core(TM) i9-13900K", "Intel Core i9-13900K"),
            ("AMD Ryzen 9 7950X 16-Core Processor", "AMD Ryzen 9 7950X"),
            ("ARMv8 something", None),
        ],
    )
    def test_names_in_the_wild(self, name: str, part: str | None) -> None:
        info = CpuInfo("", -1, -1, name, 2, 1, False, True)
        found = find_part(info, load_parts())
        assert (found.name if found else None) == part

    def test_every_row_has_a_source_and_sane_numbers(self) -> None:
        parts = load_parts()
        assert len(parts) >= 20
        for part in parts:
            assert part.source
            assert part.pattern or part.model
            assert 1 <= part.watts / part.cores <= 25
            assert part.threads >= part.cores


class TestReplay:
    def test_a_recording_measures_as_the_original_did(self, machine: Machine, clock: FakeClock) -> None:
        source, _, _ = replay(machine)
        curve = EnergyCurve.of(source)
        while clock.now() < 110.0:
            curve.add(source.read())
            clock.advance(0.1)
        reading = curve.window(Seconds(102.0), Seconds(108.0))
        assert abs(reading.joules - 1800.0) <= reading.error

    def test_a_recording_is_a_kind_of_meter(self, machine: Machine, clock: FakeClock) -> None:
        path = machine.root / "recorded.csv"
        path.write_text("at,counter,power\n0,0,\n1,300,\n")
        found = detect(f"replay:{path}", ["GPU-1"], clock)
        assert found.sources[0].sensor == SensorId("GPU-1", Scope.GPU)
        assert "is replayed in its place" in found.reasons[0]
        assert detect(f"replay:{path}", ["cpu:0"], clock).sources[0].sensor.scope is Scope.CPU_PACKAGE
        with pytest.raises(ConfigError, match="one device"):
            detect(f"replay:{path}", ["GPU-1", "GPU-2"], clock)
        with pytest.raises(ConfigError, match="is no file"):
            detect("replay:nothing.csv", ["GPU-1"], clock)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("time,joules\n1,2\n", "must begin with the columns"),
            ("at,counter,power\n", "holds no samples"),
            ("at,counter,power\n1,2,\n1,3,\n", "line 3"),
            ("at,counter,power\n1,,\n", "line 2"),
            ("at,counter,power\n1,many,\n", "line 2"),
            ("at,counter,power\n1,nan,\n", "not a finite number"),
            ("at,counter,power\n1\n", "line 2"),
        ],
    )
    def test_a_bad_file_is_refused_with_its_line(
        self, tmp_path: Path, clock: FakeClock, content: str, message: str
    ) -> None:
        path = tmp_path / "bad.csv"
        path.write_text(content)
        with pytest.raises(SensorUnavailableError, match=message):
            ReplaySource(clock, path, SensorId("GPU-1", Scope.GPU))

    def test_a_missing_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SensorUnavailableError, match="cannot be read"):
            list(read_recording(tmp_path / "none.csv"))
