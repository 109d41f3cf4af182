"""Public bug reports about collectors of energy, each as a test of the right value.

Numbers are those of the project's list of reports; the gaps are reports about limits, attribution, dashboards and
tokens, which have their tests where that code is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import telemetry.host
from energyopt.core.clock import FakeClock
from energyopt.core.errors import SensorUnavailableError
from energyopt.core.results import Scope, Source
from energyopt.core.units import Joules, Seconds, Watts, joules_from_millijoules, watts_from_milliwatts
from telemetry.amd import values
from telemetry.curve import EnergyCurve
from telemetry.fake import FakeSource
from telemetry.fake_status import FakeStatus
from telemetry.ports import Sample, SensorId
from telemetry.rapl import find_rapl
from telemetry.sampler import Sampler
from telemetry.visible import GpuIdentity, visible_gpus

Run = Callable[[str], Any]
UUID = "GPU-00000000-0000-4000-8000-000000000000"
GPU = SensorId("GPU-1", Scope.GPU)


def fed(
    counter: Callable[[float], float | None],
    power: Callable[[float], float | None],
    seconds: float = 20.0,
    source: Source = Source.COUNTER,
) -> EnergyCurve:
    """A curve of a 700 W board sampled at 20 Hz."""
    curve = EnergyCurve(GPU, source, max_power=Watts(700.0))
    for index in range(round(seconds * 20)):
        at = index / 20
        joules, watts = counter(at), power(at)
        curve.add(
            Sample(Seconds(at), None if joules is None else Joules(joules), None if watts is None else Watts(watts))
        )
    return curve


def test_01_zeus_261_the_inferred_period_is_never_zero() -> None:
    """Polled in a busy loop: 184,281 driver calls in two seconds."""
    clock = FakeClock()
    source = FakeSource(clock)
    sampler = Sampler([source], clock, period=Seconds(0.1))
    for _ in range(1000):
        clock.advance(0.01)
        sampler.step()
    assert source.reads <= 102
    assert fed(lambda at: 300.0 * at, lambda at: 300.0).tick >= 0.02


def test_02_zeus_181_two_paths_one_source_and_the_ratio_is_told() -> None:
    """187 J by counter, 327 J by integral, for the same five seconds."""
    curve = fed(lambda at: 37.4 * at, lambda at: 65.4)
    reading = curve.window(Seconds(5), Seconds(10))
    assert reading.joules == pytest.approx(187.0)
    assert reading.source is Source.COUNTER
    assert curve.crosscheck == pytest.approx(187 / 327, rel=0.02)


@pytest.mark.parametrize(("module_mw", "scope"), [(0, "gpu"), (640_000, "module")])
def test_03_04_zeus_242_172_linked_chips_are_probed_for_their_scope(in_stub: Run, module_mw: int, scope: str) -> None:
    """GB10 is linked but meters the GPU; the counter of GH200 is the whole module's."""
    found = in_stub(f"""
        from telemetry.nvml import NvmlSource
        state.gpus[0].c2c, state.gpus[0].module_mw = 1, {module_mw}
        answer(NvmlSource(clock, "{UUID}").sensor.scope)
    """)
    assert found == scope


def test_06_zeus_45_dcgm_157_an_average_is_called_one(in_stub: Run) -> None:
    found = in_stub(f"""
        from telemetry.nvml_status import NvmlStatus
        seen = NvmlStatus(clock, "{UUID}").read().power
        answer({{kind: watts for (scope, kind), watts in seen.items() if scope == "gpu"}})
    """)
    assert found == {"instant": 300.0, "average": 290.0}


def test_07_amdsmi_38_a_wrong_rate_is_found_while_running() -> None:
    reading = fed(lambda at: 900.0 * at, lambda at: 100.0).window(Seconds(14), Seconds(19))
    assert reading.joules == pytest.approx(500.0)
    assert reading.source is Source.INTEGRATED


def test_08_amdsmi_115_a_counter_that_jumps_back_and_returns_is_held() -> None:
    curve = fed(lambda at: 5.0 if at == 5.0 else 1e4 + 300.0 * at, lambda at: 300.0)
    assert curve.window(Seconds(1), Seconds(9)).joules == pytest.approx(2400.0)
    assert curve.counts["backward"] == 1


def test_09_rocm_smi_180_a_counter_that_stands_still_is_replaced_by_power() -> None:
    curve = fed(lambda at: 300.0 * min(at, 4.0), lambda at: 300.0)
    assert curve.window(Seconds(1), Seconds(19)).joules == pytest.approx(5400.0, rel=0.01)
    assert curve.counts["stuck"] == 1


def test_12_rocm_systems_6654_an_accumulator_is_no_energy_without_its_resolution() -> None:
    count = {"energy_accumulator": 1_000_000, "counter_resolution": 15.259}
    assert values.energy(count) == pytest.approx(15.259)
    assert values.energy({"power": 1_000_000, "counter_resolution": 15.259}) == pytest.approx(15.259)
    assert values.energy({"energy_accumulator": 2**64 - 1, "counter_resolution": 15.3}) is None
    assert values.energy({"energy_accumulator": 5, "counter_resolution": 0.0}) is None


@pytest.mark.parametrize(
    ("info", "power"),
    [
        ({"current_socket_power": "N/A", "average_socket_power": 17}, (17.0, "average")),
        ({"average_socket_power": "N/A", "current_socket_power": 412}, (412.0, "instant")),
        ({"socket_power": 390, "current_socket_power": 412}, (390.0, "instant")),
        ({"socket_power": 0, "average_socket_power": 17}, (17.0, "average")),
        ({"current_socket_power": 0xFFFFFFFF, "average_socket_power": 0xFFFF}, (None, None)),
        ({"average_socket_power": 136_000}, (None, None)),
        ({}, (None, None)),
    ],
)
def test_13_14_15_16_power_under_any_name_and_no_sentinel(info: dict[str, Any], power: tuple[float, str]) -> None:
    """llama-swap#1154, pytorch#127729, beszel#414, amdgpu_top#30 (milliwatts by firmware)."""
    assert values.power(info) == power


def test_17_legacy_rocm_build_4750_partitions_have_one_sensor() -> None:
    assert {values.physical(f"0000:03:00.{function}") for function in range(8)} == {"0000:03:00"}
    assert {values.identity(f"0000:03:00.{function}", "0xABC") for function in range(8)} == {"AMD-0000000000000abc"}


def test_18_mxgpu_26_a_range_of_all_ones_is_no_range() -> None:
    told = {"power_cap": 750_000_000, "default_power_cap": 0, "min_power_cap": 2**64 - 1, "max_power_cap": 2**64 - 1}
    assert values.caps(told) == {"requested": 750.0, "enforced": 750.0}


def test_20_21_dcgm_exporter_257_561_slices_have_one_series_and_the_parent_stays(in_stub: Run) -> None:
    found = in_stub("""
        from telemetry.host import HostScan
        state.gpus[0].mig_uuid, state.gpus[0].mig_count = b"MIG-1", 7
        seen = HostScan(clock).scan()
        answer([[source.sensor.device for source in seen.sources], [one.info.partitions for one in seen.statuses]])
    """)
    assert found == [[UUID], [7]]


def test_22_dcgm_exporter_417_a_counter_never_decreases() -> None:
    curve = fed(lambda at: 1e6 + 300.0 * at if at < 5.0 else 300.0 * (at - 5.0), lambda at: 300.0)
    totals = [curve.energy(Seconds(at)) for at in range(1, 19)]
    assert totals == sorted(totals)
    assert totals[-1] - totals[0] == pytest.approx(5100.0, rel=0.01)


@pytest.mark.parametrize("value", ["N/A", None, 0xFFFF, 0xFFFFFFFF, 2**64 - 1, -1, float("nan")])
def test_24_25_slurm_job_exporter_30_dcgm_exporter_700_blanks_are_absent(value: object) -> None:
    for read in (values.number, values.cap, values.celsius, values.hertz, values.share):
        assert read(value) is None


@pytest.mark.parametrize(("limit", "joules"), [(262_143_328_850, 5.0), (None, None)])
def test_26_27_codecarbon_309_1309_a_wrap_has_the_size_of_its_range(
    tmp_path: Path, limit: int | None, joules: float | None
) -> None:
    """Negative energy at the wrap; and where the range cannot be read, nothing is made up."""
    clock, zone = FakeClock(), tmp_path / "intel-rapl:0"
    zone.mkdir()
    (zone / "name").write_text("package-0\n")
    (zone / "energy_uj").write_text("262143328000\n")
    if limit is not None:
        (zone / "max_energy_range_uj").write_text(f"{limit}\n")
    source = find_rapl(clock, tmp_path)[0]
    before = source.read().counter
    clock.advance(1.0)
    (zone / "energy_uj").write_text("4999150\n")
    after = source.read().counter
    assert before is not None
    assert after is not None
    if joules is None:
        assert after < before  # handed on as it is: the curve holds it as a reset that waits for proof
    else:
        assert after - before == pytest.approx(joules)


def test_28_codecarbon_117_energy_is_not_a_short_samples_power() -> None:
    """A sample of 10 ms between two bursts: 100 times too low."""
    curve = fed(lambda at: 300.0 * at, lambda at: 3.0)
    assert curve.window(Seconds(1), Seconds(5)).joules == pytest.approx(1200.0)


def test_29_codecarbon_1316_without_a_counter_power_is_integrated() -> None:
    reading = fed(lambda at: None, lambda at: 300.0, source=Source.INTEGRATED).window(Seconds(1), Seconds(5))
    assert reading.joules == pytest.approx(1200.0)
    assert reading.source is Source.INTEGRATED


def test_30_codecarbon_567_873_518_only_the_visible_gpus_and_slices_too() -> None:
    gpus = [GpuIdentity(f"GPU-{i}", "H100", f"0000:0{i}:00.0", (f"MIG-{i}",)) for i in range(4)]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "2"}, gpus) == ("GPU-2",)
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "MIG-3,GPU-1"}, gpus) == ("GPU-3", "GPU-1")
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}, gpus) == ()


@pytest.mark.parametrize("spike", [2.0**64 / 1e3, 4_294_967.295, 1e15])
def test_31_36_kepler_897_nvtop_409_no_petajoules(spike: float) -> None:
    curve = fed(lambda at: spike if at == 5.0 else 1e4 + 300.0 * at, lambda at: spike if at == 7.0 else 300.0)
    assert curve.window(Seconds(1), Seconds(9)).joules == pytest.approx(2400.0)


def test_35_nvidia_container_toolkit_48_a_dead_driver_shows_as_down_and_comes_back() -> None:
    clock, broken = FakeClock(), [False]
    source = FakeSource(clock, fault=lambda sample: None if broken[0] else sample)
    status = FakeStatus(clock, change=lambda seen: None if broken[0] else seen)
    sampler = Sampler([source], clock, statuses=[status])
    seen = []
    for broken[0] in (False, True, False):
        clock.advance(20.0)
        sampler.step()
        seen.append((sampler.channels[0].up, sampler.devices[0].up))
    assert seen == [(True, True), (False, False), (True, True)]


def test_37_nomad_device_nvidia_118_milliwatts_are_not_watts() -> None:
    assert watts_from_milliwatts(300_000) == 300.0
    assert joules_from_millijoules(300_000) == 300.0


def test_38_aiconfigurator_1534_the_right_board_is_measured() -> None:
    mixed = [GpuIdentity("GPU-big", "H100", "0000:02:00.0"), GpuIdentity("GPU-small", "L4", "0000:01:00.0")]
    with pytest.raises(SensorUnavailableError, match="PCI_BUS_ID"):
        visible_gpus({"CUDA_VISIBLE_DEVICES": "0"}, mixed)
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "GPU-big"}, mixed) == ("GPU-big",)


def test_39_nviwatch_28_one_card_that_cannot_does_not_stop_the_others(in_stub: Run) -> None:
    found = in_stub("""
        from telemetry.host import HostScan
        state = nvmlstub.create(path, 3)
        for call in ("energy", "power", "fields"):
            state.gpus[1].fail(call, 3)
        seen = HostScan(clock).scan()
        answer([[source.sensor.device[:12] for source in seen.sources], list(seen.reasons)])
    """)
    devices, reasons = found
    assert devices == ["GPU-00000000", "GPU-00000002"]
    assert any("GPU-00000001" in reason and "neither energy nor power" in reason for reason in reasons)


def test_40_gpustat_76_the_sensors_own_pace_is_found() -> None:
    curve = fed(lambda at: 300.0 * (at - at % 0.5), lambda at: 300.0)
    assert curve.tick == pytest.approx(0.5, abs=0.05)


def test_41_rlinf_1507_this_process_never_loads_the_amd_library() -> None:
    """A wheel newer than ROCm broke `import torch`; two AMD libraries in one process end in SIGBUS."""
    telemetry.host.HostScan(FakeClock()).close()
    assert not [name for name in sys.modules if name.split(".")[0] == "amdsmi"]


def test_46_srt_slurm_481_a_domain_is_named_and_a_rail_is_no_socket(tmp_path: Path) -> None:
    """Only packages and their memory are sensors; core, uncore and psys are parts or wholes of them."""
    for zone, name in (
        ("intel-rapl:0", "package-0"),
        ("intel-rapl:0:0", "core"),
        ("intel-rapl:0:1", "dram"),
        ("intel-rapl:1", "psys"),
        ("intel-rapl-mmio:0", "package-0"),
    ):
        (tmp_path / zone).mkdir()
        (tmp_path / zone / "name").write_text(name)
        (tmp_path / zone / "energy_uj").write_text("1000")
    found = [source.sensor for source in find_rapl(FakeClock(), tmp_path)]
    assert found == [SensorId("cpu:0", Scope.CPU_PACKAGE), SensorId("cpu:0", Scope.DRAM)]
