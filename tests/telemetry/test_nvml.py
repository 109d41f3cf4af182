"""The real nvidia-ml-py over a stub driver whose energy is known exactly."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from energyopt.core.clock import FakeClock
from energyopt.core.errors import SensorUnavailableError
from telemetry.nvml import NvmlSource, list_gpus

Run = Callable[[str], Any]
UUID = "GPU-00000000-0000-4000-8000-000000000000"


def test_without_a_driver_the_reason_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """On any machine, whatever it has: the loader finds no library, as ctypes tells it."""

    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(pynvml, "CDLL", missing)
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    with pytest.raises(SensorUnavailableError, match=r"libnvidia-ml.so.1 is not installed"):
        list_gpus()
    with pytest.raises(SensorUnavailableError, match="cannot be read"):
        NvmlSource(FakeClock(), UUID)


def test_energy_and_power_are_read_in_one_driver_call(in_stub: Run) -> None:
    """The counter as a field, where it is the counter of the older call; else, and where it fails, that call."""
    found = in_stub(f"""
        from telemetry.nvml import NvmlSource

        gpu, source = state.gpus[0], NvmlSource(clock, "{UUID}")
        before = [gpu.count("handle"), gpu.count("energy"), gpu.count("power")]
        clock.sleep(0.3)
        sample = source.read()
        calls = [gpu.count("handle"), gpu.count("energy"), gpu.count("power")]
        gpu.fail("fields", 3)
        older = source.read()
        gpu.fail("fields", 0)
        state.field_offset_mj = 5_000_000
        apart = NvmlSource(clock, "{UUID}").read()
        answer([[b - a for a, b in zip(before, calls)], sample.counter, sample.power, sample.kind,
                older.counter, older.power, older.kind, apart.counter])
    """)
    calls, counter, power, kind, older, mean, average, apart = found
    assert calls == [1, 1, 0]  # one call, in which the counter was asked once
    assert (counter, power, kind) == (pytest.approx(5000.0 + 90.0), 300.0, "instant")
    assert (older, mean, average) == (counter, 290.0, "average")
    assert apart == counter, "a field that is another counter is not used"


def test_energy_of_a_minute_with_lost_samples_and_power_steps_is_exact_to_half_a_percent(in_stub: Run) -> None:
    found = in_stub(f"""
        import random
        from telemetry.nvml import NvmlSource
        from telemetry.curve import EnergyCurve

        rng, source = random.Random(3), NvmlSource(clock, "{UUID}")
        curve, truth = EnergyCurve.of(source), []
        for step in range(1300):
            clock.sleep(0.05 + rng.uniform(-0.004, 0.004))
            if step % 97 == 0:
                state.set_power(0, rng.choice([90.0, 300.0, 480.0, 690.0]))
            if rng.random() >= 0.05:
                curve.add(source.read())
            truth.append((clock.now(), state.joules(0)))
        (start, before), (end, after) = truth[20], truth[1240]
        reading = curve.window(start, end)
        answer([reading.joules, reading.error, reading.source, reading.scope, after - before, end - start, curve.tick])
    """)
    joules, error, source, scope, truth, window, tick = found
    assert window > 60
    assert joules == pytest.approx(truth, rel=0.005)
    assert abs(joules - truth) <= error
    assert (source, scope) == ("counter", "gpu")
    assert tick == pytest.approx(0.1, abs=0.02)


def test_units_kind_and_maximum(in_stub: Run) -> None:
    found = in_stub(f"""
        from telemetry.nvml import NvmlSource
        source = NvmlSource(clock, "{UUID}")
        state.elapse(10)
        sample = source.read()
        answer([sample.counter, sample.power, sample.kind, source.max_power, sample.at, source.sensor.device])
    """)
    assert found == [8000.0, 300.0, "instant", 700.0, 1010.0, UUID]


@pytest.mark.parametrize(
    ("name", "architecture", "kind"),
    [("NVIDIA H100", 9, "average"), ("NVIDIA A100-SXM4-80GB", 7, "instant"), ("Tesla V100", 5, "instant")],
)
def test_older_drivers_power_is_labelled_by_what_it_means_on_the_chip(
    in_stub: Run, name: str, architecture: int, kind: str
) -> None:
    """ml-energy/zeus#45: a mean over a second taken for the power of the moment."""
    found = in_stub(f"""
        from telemetry.nvml import NvmlSource
        state.gpus[0].name, state.gpus[0].architecture = {name.encode()!r}, {architecture}
        state.gpus[0].fail("fields", 3)
        sample = NvmlSource(clock, "{UUID}").read()
        answer([sample.power, sample.kind])
    """)
    assert found == [290.0, kind]


def test_energy_not_supported_falls_back_to_power(in_stub: Run) -> None:
    """Zeus 0.16 raises where a virtual GPU has no energy counter; codecarbon#1316 reports 0 kWh."""
    found = in_stub(f"""
        from telemetry.nvml import NvmlSource
        from telemetry.curve import EnergyCurve
        state.gpus[0].fail("energy", 3)
        source = NvmlSource(clock, "{UUID}")
        curve, start = EnergyCurve.of(source), clock.now()
        for _ in range(41):
            curve.add(source.read())
            clock.sleep(0.05)
        reading = curve.window(start, start + 1)
        answer([reading.joules, reading.source])
    """)
    assert found == [pytest.approx(300.0), "integrated"]


def test_power_not_supported_leaves_the_counter(in_stub: Run) -> None:
    """msminhas93/nviwatch#28: one field that is not supported took the whole tool down."""
    found = in_stub(f"""
        from telemetry.nvml import NvmlSource
        state.gpus[0].fail("fields", 3)
        state.gpus[0].fail("power", 3)
        sample = NvmlSource(clock, "{UUID}").read()
        answer([sample.counter, sample.power])
    """)
    assert found == [5000.0, None]


def test_a_gpu_that_tells_nothing_is_unavailable_and_others_stay(in_stub: Run) -> None:
    found = in_stub("""
        from energyopt.core.errors import SensorUnavailableError
        from telemetry.nvml import NvmlSource
        state = nvmlstub.create(path, 2)
        for call in ("energy", "power", "fields"):
            state.gpus[0].fail(call, 3)
        try:
            NvmlSource(clock, state.gpus[0].uuid.decode())
            words = None
        except SensorUnavailableError as error:
            words = str(error)
        answer([words, NvmlSource(clock, state.gpus[1].uuid.decode()).read().counter])
    """)
    assert "neither energy nor power" in found[0]
    assert found[1] == 5000.0


@pytest.mark.parametrize("code", [999, 15, 1])
def test_a_lost_driver_is_reported_and_opened_again(in_stub: Run, code: int) -> None:
    """NVIDIA/nvidia-container-toolkit#48: Unknown Error after a daemon reload, for ever."""
    found = in_stub(f"""
        from energyopt.core.errors import SensorError
        from telemetry.nvml import NvmlSource
        source = NvmlSource(clock, "{UUID}")
        state.gpus[0].fail("energy", {code})
        failures = []
        for _ in range(3):
            try:
                source.read()
            except SensorError as error:
                failures.append(str(error))
        before = state.init_calls
        state.gpus[0].fail("energy", 0)
        sample = source.read()
        answer([failures, sample.counter, state.init_calls > before])
    """)
    failures, counter, opened = found
    assert len(failures) == 3
    assert all(UUID in words and str(code) in words for words in failures)
    assert counter == 5000.0
    assert opened


def test_counter_reset_by_a_driver_reload_never_makes_energy_negative(in_stub: Run) -> None:
    found = in_stub(f"""
        from telemetry.nvml import NvmlSource
        from telemetry.curve import EnergyCurve
        source = NvmlSource(clock, "{UUID}")
        curve, start = EnergyCurve.of(source), clock.now()
        for step in range(240):
            if step == 120:
                state.gpus[0].base_uj, state.gpus[0].since_ns = 0, state.now_ns
            clock.sleep(0.05)
            curve.add(source.read())
        reading = curve.window(start + 1, start + 11)
        answer([reading.joules, curve.counts["resets"]])
    """)
    assert found == [pytest.approx(3000.0, rel=0.02), 1]


def test_mig_instance_is_metered_by_its_parent(in_stub: Run) -> None:
    """NVIDIA/dcgm-exporter#257: every slice showed the power of the whole GPU."""
    found = in_stub("""
        from telemetry.detect import detect
        state.gpus[0].mig_uuid = b"MIG-1"
        state.gpus[0].fail("fields", 0)
        found = detect("auto", ["MIG-1", state.gpus[0].uuid.decode()], clock)
        answer([[source.sensor.device for source in found.sources], dict(found.names)])
    """)
    assert found == [[UUID], {"MIG-1": UUID}]


def test_superchip_is_labelled_module(in_stub: Run) -> None:
    """ml-energy/zeus#172: on GH200 the counter is the whole module's."""
    found = in_stub(f"""
        from telemetry.nvml import NvmlSource
        state.gpus[0].c2c, state.gpus[0].module_mw = 1, 640_000
        source = NvmlSource(clock, "{UUID}")
        answer([source.sensor.scope, source.max_power, source.read().power])
    """)
    assert found == ["module", None, 640.0]


def test_linked_chip_without_module_scope_is_a_gpu(in_stub: Run) -> None:
    """ml-energy/zeus#242: GB10 says it is linked but meters the GPU only."""
    found = in_stub(f"""
        from telemetry.nvml import NvmlSource
        state.gpus[0].c2c, state.gpus[0].module_mw = 1, 0
        answer(NvmlSource(clock, "{UUID}").sensor.scope)
    """)
    assert found == "gpu"


def test_detect_names_cuda_devices_as_the_process_sees_them(in_stub: Run) -> None:
    found = in_stub("""
        from telemetry.detect import detect
        state = nvmlstub.create(path, 3)
        second = state.gpus[1].uuid.decode()
        environments = [{}, {"CUDA_VISIBLE_DEVICES": "1,0"}, {"CUDA_VISIBLE_DEVICES": second[:12]}]
        found = [detect("nvml", ["cuda:0"], clock, environment=one).sources[0].sensor.device for one in environments]
        bare = detect("auto", [second.removeprefix("GPU-")], clock).sources[0].sensor.device
        hidden = detect("auto", ["cuda:0"], clock, environment={"CUDA_VISIBLE_DEVICES": ""})
        answer([found, bare, [list(hidden.sources), hidden.reasons[0]]])
    """)
    devices, bare, (none, reason) = found
    assert [device[:12] for device in devices] == ["GPU-00000000", "GPU-00000001", "GPU-00000001"]
    assert bare.startswith("GPU-00000001")
    assert none == []
    assert "not among the 0" in reason


def test_one_gpu_of_several_that_fails_leaves_no_partial_meter(in_stub: Run) -> None:
    found = in_stub("""
        from telemetry.detect import detect
        state = nvmlstub.create(path, 2)
        for call in ("energy", "power", "fields"):
            state.gpus[1].fail(call, 3)
        found = detect("auto", ["cuda:0", "cuda:1"], clock, environment={})
        answer([len(found.sources), found.reasons[0]])
    """)
    assert found[0] == 0
    assert "GPU energy is not measured" in found[1]


def test_slow_driver_call_is_stamped_in_its_middle(in_stub: Run) -> None:
    found = in_stub(f"""
        from energyopt.core.clock import MonotonicClock
        from telemetry.nvml import NvmlSource
        source = NvmlSource(MonotonicClock(), "{UUID}")
        state.gpus[0].rc[nvmlstub.CALLS.index("slow_ms")] = 100
        before = MonotonicClock().now()
        sample = source.read()
        answer([sample.at - before, MonotonicClock().now() - before])
    """)
    offset, whole = found
    assert whole > 0.15
    assert math.isclose(offset, whole / 2, abs_tol=0.03)


def test_driver_that_appears_later_is_seen(in_stub: Run) -> None:
    """A failed first look must not be remembered: Zeus caches it for the life of the process."""
    found = in_stub("""
        from energyopt.core.errors import SensorUnavailableError
        from telemetry.nvml import list_gpus
        state.init_rc = 9
        try:
            list_gpus()
            refused = False
        except SensorUnavailableError:
            refused = True
        state.init_rc = 0
        answer([refused, len(list_gpus())])
    """)
    assert found == [True, 1]


def test_stub_is_what_the_process_loaded(in_stub: Run) -> None:
    assert in_stub("import pynvml; pynvml.nvmlInit(); answer(pynvml.nvmlDeviceGetCount())") == 1
    assert "libnvidia-ml" not in "".join(sys.modules)


def test_a_reload_is_survived_by_all_users_of_the_library(in_stub: Run) -> None:
    """nvidia-container-toolkit#48: the library starts afresh only when its last user has let go."""
    found = in_stub("""
        from energyopt.core.units import Seconds
        from telemetry.detect import detect
        from telemetry.sampler import Sampler
        state = nvmlstub.create(path, 2)
        found = detect("nvml", [gpu.uuid.decode() for gpu in state.gpus[:2]], clock)
        sampler = Sampler(found.sources, clock, period=Seconds(0.1), statuses=found.statuses)
        def go(seconds):
            for _ in range(round(seconds / 0.05)):
                clock.sleep(0.05)
                sampler.step()
        go(5)
        before = [channel.up for channel in (*sampler.channels, *sampler.devices)]
        state.epoch += 1
        go(2)
        errors = [channel.errors for channel in sampler.channels]
        go(30)
        after = [channel.up for channel in (*sampler.channels, *sampler.devices)]
        joules = [channel.curve.total for channel in sampler.channels]
        answer([before, errors, after, joules])
    """)
    before, errors, after, joules = found
    assert before == after == [True] * 4
    assert all(count >= 1 for count in errors)
    assert joules == [pytest.approx(300.0 * 37, rel=0.02)] * 2


def test_two_gpus_of_one_module_are_metered_once(in_stub: Run) -> None:
    """k8s-test-infra#676, GB200: adding the module's energy once a GPU counts it twice."""
    found = in_stub("""
        from telemetry.detect import detect
        state = nvmlstub.create(path, 3)
        for index, module in enumerate((5, 5, 6)):
            gpu = state.gpus[index]
            gpu.c2c, gpu.module_mw, gpu.module_id = 1, 1_500_000, module
        found = detect("nvml", ["cuda:0", "cuda:1", "cuda:2"], clock, environment={})
        answer([[source.sensor.device[:12] for source in found.sources], found.reasons])
    """)
    devices, reasons = found
    assert devices == ["GPU-00000000", "GPU-00000002"]
    assert any("GPU-00000001" in line and "shares the sensor of GPU-00000000" in line for line in reasons)


def test_a_slow_driver_delays_no_other_gpu(in_stub: Run) -> None:
    """A driver call on one GPU that does not come back; the other is sampled meanwhile, and the first once it does."""
    found = in_stub("""
        import time
        from energyopt.core.clock import MonotonicClock
        from energyopt.core.units import Seconds
        from telemetry.detect import detect
        from telemetry.sampler import Sampler
        state = nvmlstub.create(path, 2)
        stuck, quick = state.gpus[:2]
        clock, slow = MonotonicClock(), nvmlstub.CALLS.index("slow_ms")
        found = detect("nvml", [gpu.uuid.decode() for gpu in (stuck, quick)], clock)
        stuck.rc[slow] = 60_000

        def more(gpu, calls):
            wanted, deadline = gpu.count("energy") + calls, time.monotonic() + 20.0
            while gpu.count("energy") < wanted and time.monotonic() < deadline:
                time.sleep(0.005)
            return gpu.count("energy") >= wanted

        before = stuck.count("energy")
        with Sampler(found.sources, clock, period=Seconds(0.02)):
            went_on, during = more(quick, 15), stuck.count("energy") - before
            stuck.rc[slow] = 0
            answer([went_on, during, more(stuck, 3)])
    """)
    assert found == [True, 0, True]
