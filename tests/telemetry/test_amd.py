"""The real amdsmi over a stub library, in the child process that energyopt keeps it in."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from energyopt.core.clock import MonotonicClock
from energyopt.core.errors import SensorError, SensorUnavailableError
from energyopt.core.results import Scope, Source
from energyopt.core.units import Seconds
from telemetry.amd.process import AmdProcess
from telemetry.amd.source import AmdSource, AmdStatus, list_amd
from telemetry.curve import EnergyCurve
from telemetry.detect import Detection, detect
from telemetry.status import Throttle

Machine = Callable[[int], Any]
CLOCK = MonotonicClock()


@pytest.fixture
def process() -> Iterator[AmdProcess]:
    made = AmdProcess(CLOCK)
    yield made
    made.close()


def only(process: AmdProcess) -> AmdSource:
    return AmdSource(CLOCK, process, list_amd(process)[0])


def test_energy_is_accumulator_times_resolution(amd_machine: Machine, process: AmdProcess) -> None:
    """ROCm/rocm-systems#6654: the accumulator taken for microjoules."""
    state = amd_machine(1)
    source = only(process)
    first, began = source.read(), time.monotonic_ns()
    time.sleep(0.3)
    last, ended = source.read(), time.monotonic_ns()
    assert first.counter is not None
    assert last.counter is not None
    assert last.counter - first.counter == pytest.approx(400.0 * (ended - began) / 1e9, rel=0.05)
    since = (time.monotonic_ns() - state.gpus[0].since_ns) / 1e9
    assert last.counter == pytest.approx(5000.0 + 400.0 * since, rel=0.02)
    assert (source.sensor.device, source.sensor.scope) == ("AMD-000000000000abc0", Scope.SOCKET)
    assert (source.source, source.max_power, last.power, last.kind) == (Source.COUNTER, 750.0, 400.0, "instant")


@pytest.mark.parametrize(
    ("socket", "current", "average", "power", "kind"),
    [
        (0xFFFF, 400, 0xFFFF, 400.0, "instant"),
        (0xFFFF, 0xFFFF, 380, 380.0, "average"),
        (410, 400, 380, 410.0, "instant"),
        (0xFFFF, 0xFFFFFFFF, 17, 17.0, "average"),
        (0xFFFFFFFFFFFFFFFF, 0, 17, 17.0, "average"),
        (250_000, 0xFFFF, 250, 250.0, "average"),
        (0xFFFF, 0xFFFF, 0xFFFF, None, None),
    ],
)
def test_power_is_the_first_field_that_is_known(
    amd_machine: Machine, process: AmdProcess, socket: int, current: int, average: int, power: float, kind: str
) -> None:
    """pytorch#127729, beszel#414, llama-swap#1154, amdgpu_top#30; amdsmi 7.0.2 lets 0xFFFFFFFF through."""
    gpu = amd_machine(1).gpus[0]
    gpu.socket_w, gpu.current_w, gpu.average_w = socket, current, average
    sample = only(process).read()
    assert (sample.power, sample.kind) == (power, kind)


def test_a_guest_without_counter_is_integrated(amd_machine: Machine, process: AmdProcess) -> None:
    """Zeus: get_gpus() itself raises, and power is lost too."""
    amd_machine(1).gpus[0].fail("energy", 2)
    source = only(process)
    assert source.source is Source.INTEGRATED
    assert source.read().power == 400.0


def test_power_that_fails_leaves_the_counter(amd_machine: Machine, process: AmdProcess) -> None:
    """The call returns the status of the cap's read: power can fail because a cap file is missing."""
    amd_machine(1).gpus[0].fail("power", 2)
    sample = only(process).read()
    assert sample.counter is not None
    assert sample.power is None


def test_a_wrong_counter_rate_is_found_and_power_integrated(amd_machine: Machine, process: AmdProcess) -> None:
    """ROCm/amdsmi#38. In virtual time: the stub's clock and ours are the same number."""
    state = amd_machine(1)
    state.now_ns = state.gpus[0].since_ns
    state.gpus[0].true_resolution *= 5
    source = only(process)
    curve, start = EnergyCurve.of(source), state.now_ns / 1e9
    for _ in range(600):
        state.now_ns += 50_000_000
        sample = source.read()
        curve.add(type(sample)(Seconds(state.now_ns / 1e9), sample.counter, sample.power, sample.kind))
    reading = curve.window(Seconds(start + 15), Seconds(start + 29))
    assert curve.counts["wrong_rate"] == 1
    assert reading.source is Source.INTEGRATED
    assert reading.joules == pytest.approx(400.0 * 14, rel=0.01)


def test_partitions_are_one_gpu(amd_machine: Machine, process: AmdProcess) -> None:
    """legacy-rocm-build#4750: 136 W on each of eight partitions, or 0 on seven of them."""
    state = amd_machine(9)
    for index in range(8):
        state.gpus[index].bus, state.gpus[index].function, state.gpus[index].serial = 3, index, b"abc"
        state.gpus[index].current_w = 136 if index == 0 else 0
    gpus = list_amd(process)
    assert [(gpu.info.device, gpu.info.partitions, gpu.info.pci) for gpu in gpus] == [
        ("AMD-0000000000000abc", 8, "0000:03:00.0"),
        ("AMD-000000000000abc8", None, "0000:0b:00.0"),
    ]
    assert AmdSource(CLOCK, process, gpus[0]).read().power == 136.0


def test_a_second_die_that_tells_nothing_is_unavailable_and_the_first_stays(
    amd_machine: Machine, process: AmdProcess
) -> None:
    """rocm_smi_lib#160: the even die of an MI250 shows both, the odd one "N/A"."""
    state = amd_machine(2)
    state.gpus[1].current_w = 0xFFFF
    state.gpus[1].fail("energy", 2)
    first, second = list_amd(process)
    assert AmdSource(CLOCK, process, first).read().power == 400.0
    with pytest.raises(SensorUnavailableError, match="neither energy nor power"):
        AmdSource(CLOCK, process, second)


def test_status_in_base_units(amd_machine: Machine, process: AmdProcess) -> None:
    """aiperf#976: degrees divided by 1000 twice are 0."""
    state = amd_machine(1)
    device = AmdStatus(process, list_amd(process)[0])
    device.read()
    gpu = state.gpus[0]
    gpu.samples, gpu.ppt = 1000, 250
    seen = device.read()
    assert seen.temperature == {"hotspot": 61.0, "memory": 52.0}
    assert seen.limits == {"requested": 700.0, "enforced": 700.0, "default": 750.0, "min": 0.0, "max": 750.0}
    assert seen.clocks == {"sm": 1.9e9, "memory": 1.3e9}
    assert seen.clock_bounds["sm", "max"] == 2.1e9
    assert seen.utilization == {"compute": 0.88, "memory": 0.33}
    assert seen.power == {(Scope.SOCKET, "instant"): 400.0}
    assert seen.throttled == frozenset({Throttle.POWER_CAP})
    assert 0 < seen.throttle_time[Throttle.POWER_CAP] < 5.0
    assert (device.info.vendor, device.info.model, device.info.driver) == ("amd", "Stub MI300X", "6.14.5")


@pytest.mark.parametrize("call", ["cap", "clocks", "temperature", "activity", "metrics", "power"])
def test_a_fact_that_fails_is_absent_and_the_others_stay(amd_machine: Machine, process: AmdProcess, call: str) -> None:
    state = amd_machine(1)
    device = AmdStatus(process, list_amd(process)[0])
    state.gpus[0].fail(call, 2)
    seen = device.read()
    facts = {
        "cap": seen.limits,
        "clocks": seen.clocks,
        "temperature": seen.temperature,
        "activity": seen.utilization,
        "metrics": seen.throttle_time,
        "power": seen.power,
    }
    assert {name for name, fact in facts.items() if not fact} == {call}


def test_limits_that_are_no_numbers_are_absent(amd_machine: Machine, process: AmdProcess) -> None:
    """amd/MxGPU-Virtualization#26: default 0, range all ones; a hypervisor's host tells watts."""
    gpu = amd_machine(1).gpus[0]
    gpu.cap, gpu.default_cap, gpu.low_cap, gpu.high_cap = 700, 0, 2**64 - 1, 2**64 - 1
    assert AmdStatus(process, list_amd(process)[0]).read().limits == {"requested": 700.0, "enforced": 700.0}


def test_a_library_that_kills_its_process_is_started_again(amd_machine: Machine, process: AmdProcess) -> None:
    """TheRock#3487: SIGBUS. The host process lives on, and so do the other sensors."""
    state = amd_machine(1)
    source = only(process)
    state.gpus[0].fail("energy", -7)
    with pytest.raises(SensorError, match="ended with signal 7"):
        source.read()
    state.gpus[0].fail("energy", 0)
    with pytest.raises(SensorError, match="tried again in"):
        source.read()
    assert process.failure is not None
    assert eventually(lambda: source.read().counter is not None)
    assert process.restarts == 1
    assert process.failure is None


def test_a_call_that_hangs_is_given_up(amd_machine: Machine) -> None:
    state = amd_machine(1)
    process = AmdProcess(CLOCK, timeout=Seconds(0.3))
    source = only(process)
    state.gpus[0].rc[11] = 2000
    before = time.monotonic()
    with pytest.raises(SensorError, match="did not answer within"):
        source.read()
    assert time.monotonic() - before < 1.5
    state.gpus[0].rc[11] = 0
    assert eventually(lambda: source.read().counter is not None)
    process.close()


def test_a_driver_that_goes_away_starts_the_library_afresh(amd_machine: Machine, process: AmdProcess) -> None:
    state = amd_machine(1)
    source = only(process)
    state.gpus[0].fail("power", 34)
    with pytest.raises(SensorError, match="amdgpu driver is not loaded"):
        source.read()
    inits = state.init_calls
    state.gpus[0].fail("power", 0)
    assert eventually(lambda: source.read().counter is not None)
    assert state.init_calls > inits


def test_a_library_that_comes_later_is_found(
    amd_machine: Machine, amd_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: AmdProcess
) -> None:
    amd_machine(1)
    late = tmp_path / "rocm"
    monkeypatch.setenv("ROCM_PATH", str(late))
    with pytest.raises(SensorUnavailableError, match=r"libamd_smi\.so cannot be loaded"):
        list_amd(process)
    shutil.copytree(amd_library / "lib", late / "lib")
    assert eventually(lambda: len(list_amd(process)) == 1)


def test_a_package_newer_than_the_library_is_named(
    amdstub: Any,
    amd_machine: Machine,
    compiler: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    process: AmdProcess,
) -> None:
    """RLinf#1507, amdsmi#186: an undefined symbol at import, which broke `import torch`."""
    amd_machine(1)
    old = amdstub.build(tmp_path / "old", compiler, without="amdsmi_get_gpu_xcd_counter")
    monkeypatch.setenv("ROCM_PATH", str(old))
    with pytest.raises(SensorUnavailableError, match=r"newer than this ROCm.*xcd_counter.*pip install"):
        list_amd(process)


def test_without_the_library_this_process_never_imports_it(
    process: AmdProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROCM_PATH", raising=False)
    with pytest.raises(SensorUnavailableError, match="AMD GPUs cannot be"):
        list_amd(process)
    assert "amdsmi" not in sys.modules


@pytest.mark.parametrize(
    "says", ["print('no JSON')", "print('[]')", "pass", "print('{\"ready\": true}'); input(); print('{\"id\": 77}')"]
)
def test_a_child_that_does_not_speak_the_protocol_is_refused(says: str) -> None:
    process = AmdProcess(CLOCK, command=(sys.executable, "-c", says), timeout=Seconds(2.0))
    with pytest.raises(SensorUnavailableError):
        list_amd(process)
    process.close()


def close(found: Detection) -> None:
    for source in found.sources:
        source.close()
    for status in found.statuses:
        status.close()


def eventually(attempt: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if attempt():
                return True
        except (SensorError, SensorUnavailableError):
            time.sleep(0.05)
    return False


def test_detect_finds_amd_gpus_by_name_and_by_ordinal(amd_machine: Machine, tmp_path: Path) -> None:
    """torch says "cuda:0" on ROCm too; HIP's order is not the PCI order."""
    state = amd_machine(3)
    for index, hip in enumerate((2, 0, 1)):
        state.gpus[index].hip = hip
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    for environment, expected in (
        ({}, "abc1"),
        ({"HIP_VISIBLE_DEVICES": "2"}, "abc0"),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "CUDA_VISIBLE_DEVICES": "1"}, "abc0"),
        ({"ROCR_VISIBLE_DEVICES": "GPU-000000000000abc2"}, "abc2"),
    ):
        found = detect("amdsmi", ["cuda:0"], CLOCK, root=tmp_path, environment=environment)
        assert [source.sensor.device[-4:] for source in found.sources] == [expected]
        assert [status.info.device for status in found.statuses] == [found.sources[0].sensor.device]
        close(found)
    named = detect("auto", ["GPU-000000000000ABC1"], CLOCK, root=tmp_path)
    assert named.sources[0].sensor.device == "AMD-000000000000abc1"
    assert named.names == {"GPU-000000000000ABC1": "AMD-000000000000abc1"}
    close(named)


def test_detect_says_why_an_amd_gpu_is_not_measured(amd_machine: Machine, tmp_path: Path) -> None:
    amd_machine(1)
    found = detect("auto", ["GPU-000000000000ffff"], CLOCK, root=tmp_path)
    assert found.sources == ()
    assert "not among the 1 AMD GPUs" in found.reasons[0]


def test_the_last_user_ends_the_child(amd_machine: Machine, process: AmdProcess) -> None:
    amd_machine(1)
    gpu = list_amd(process)[0]
    source, status = AmdSource(CLOCK, process, gpu), AmdStatus(process, gpu)
    source.close()
    source.close()
    assert process.running
    status.close()
    assert not process.running
