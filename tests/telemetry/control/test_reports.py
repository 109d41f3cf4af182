"""Public bug reports about limits and clocks, one test each; the number is the row of the list of 48.

Rows 5, 18, 19 and 45 are tested at more length in ``test_amd_limits``, row 43 in ``test_crash``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from energyopt.core.clock import FakeClock, MonotonicClock
from energyopt.core.config import PowerConfig
from energyopt.core.errors import ControlError
from energyopt.core.units import Hertz, Seconds, Watts
from telemetry.amd.process import AmdProcess
from telemetry.control.access import Access, Peer
from telemetry.control.amd_limits import AmdLimits
from telemetry.control.fake import FakeLimits
from telemetry.control.journal import Journal
from telemetry.control.leased import LeasedPower
from telemetry.control.leases import LOOK_EVERY, LeaseBook
from telemetry.control.limits import Limiter

Run = Callable[[str], Any]
Leased = Callable[..., LeasedPower]
CAP = PowerConfig(cap=Watts(400.0))
AMD = "AMD-000000000000abc0"
NVML = """
from energyopt.core.config import PowerConfig
from energyopt.core.errors import ControlError
from telemetry.control.journal import Journal
from telemetry.control.limits import Limiter
from telemetry.control.nvml_limits import NvmlLimits
backend = NvmlLimits()
backend.forbidden = lambda device: None
limiter = Limiter(backend, Journal(path.parent / "journal"), clock=clock)
DEVICE = "GPU-00000000-0000-4000-8000-000000000000"
gpu = state.gpus[0]
"""


@pytest.fixture
def amd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, Limiter]]:
    state = request.getfixturevalue("amd_machine")(1)
    process = AmdProcess(MonotonicClock())
    backend = AmdLimits(process, module=tmp_path)
    backend.forbidden = lambda device: None  # type: ignore[method-assign]
    yield state.gpus[0], Limiter(backend, Journal(tmp_path / "journal"), clock=FakeClock())
    process.close()


def test_05_zeus_254_an_amd_clock_reset_means_automatic_clocks(amd: tuple[Any, Limiter]) -> None:
    gpu, limiter = amd
    limiter.put_back(limiter.take(AMD, PowerConfig(sm_clock=Hertz(0.9e9))))
    assert (gpu.perf_level, gpu.clock_high) == (0, 2100)


def test_11_amdsmi_139_the_cap_is_that_of_sensor_0_in_microwatts(amd: tuple[Any, Limiter]) -> None:
    """The stub refuses any other sensor. ``power_limit`` of the power info is never read for a cap."""
    gpu, limiter = amd
    entry = limiter.take(AMD, PowerConfig(cap=Watts(350.0)))
    assert (gpu.cap, gpu.count("set_cap"), gpu.count("power")) == (350_000_000, 1, 0)
    limiter.put_back(entry)


def test_18_amd_boards_that_refuse_a_cap_are_read_only_with_the_reason(amd: tuple[Any, Limiter]) -> None:
    gpu, limiter = amd
    gpu.low_cap = gpu.high_cap = gpu.default_cap = 2**64 - 1
    assert not limiter.can_cap(AMD).allowed
    assert "it is only read" in limiter.can_cap(AMD).reason
    with pytest.raises(ControlError, match="only read"):
        limiter.check(AMD, CAP)


def test_19_rocm_systems_8458_the_memory_clock_survives_a_core_clock_and_0_watts_is_no_cap(
    amd: tuple[Any, Limiter],
) -> None:
    gpu, limiter = amd
    gpu.sclk_resets_mclk = 1
    entry = limiter.take(AMD, PowerConfig(sm_clock=Hertz(1.2e9)))
    assert gpu.memory_high == 1300
    limiter.put_back(entry)
    gpu.cap = 0
    with pytest.raises(ControlError, match="no range of power caps"):
        limiter.backend.limits(AMD)


def test_35_nvidia_container_toolkit_48_limits_work_again_after_an_unknown_error(in_stub: Run) -> None:
    """After a daemon reload every call of an open library fails with 999; ours opens it for each change."""
    words, requested = in_stub(
        NVML
        + """
entry = limiter.take(DEVICE, PowerConfig(cap=400))
gpu.fail("handle", 999)
try:
    limiter.put_back(entry)
    words = None
except ControlError as error:
    words = str(error)
gpu.fail("handle", 0)
state.epoch += 1
limiter.put_back(entry)
answer([words, gpu.requested_mw])
"""
    )
    assert "999" in words
    assert requested == 500_000


def test_37_nomad_device_nvidia_118_milliwatts_are_never_taken_for_watts(in_stub: Run) -> None:
    found = in_stub(
        NVML + "backend.set_cap(DEVICE, 412.5)\nanswer([gpu.requested_mw, backend.limits(DEVICE).requested])"
    )
    assert found == [412_500, 412.5]


def test_38_pynvml_28_the_board_is_found_by_uuid_and_not_by_index(in_stub: Run) -> None:
    found = in_stub(
        """
state = nvmlstub.create(path, 2)
"""
        + NVML
        + """
state.gpus[0].uuid, state.gpus[1].uuid = state.gpus[1].uuid, state.gpus[0].uuid  # another order after a reboot
limiter.take(DEVICE, PowerConfig(cap=300))
answer([one.requested_mw for one in state.gpus[:2]])
"""
    )
    assert found == [500_000, 300_000]


def test_39_nviwatch_28_one_card_without_limits_leaves_the_others_usable(in_stub: Run) -> None:
    found = in_stub(
        """
state = nvmlstub.create(path, 2)
"""
        + NVML
        + """
other = state.gpus[1].uuid.decode()
state.gpus[1].fail("limits", 3)
entry = limiter.take(DEVICE, PowerConfig(cap=300))
answer([gpu.requested_mw, *limiter.can_cap(other)])
"""
    )
    assert found[:2] == [300_000, False]
    assert "NVML code 3" in found[2]


def test_42_club_3090_699_the_operators_cap_comes_back_and_not_the_default(driver: FakeLimits, leased: Leased) -> None:
    driver.devices["GPU-1"].requested = Watts(275.0)
    with leased("GPU-1").applied(CAP):
        assert driver.devices["GPU-1"].requested == 400.0
    assert driver.devices["GPU-1"].requested == 275.0


HOLDER = """
import sys, time
from pathlib import Path
from energyopt.core.config import PowerConfig
from telemetry.control.client import Connection
from telemetry.control.leased import LeasedPower
with LeasedPower(("GPU-1",), lambda: Connection.to(Path(sys.argv[1]))).applied(PowerConfig(cap=300, sm_clock=1e9)):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_43_nvidia_pstated_1_no_signal_leaves_a_gpu_slow(
    driver: FakeLimits, helper_socket: Path, ending: signal.Signals
) -> None:
    command = [sys.executable, "-P", "-c", HOLDER, str(helper_socket)]
    device, root = driver.devices["GPU-1"], Path(__file__).parents[3]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(root)}
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert (device.requested, device.clock) == (300.0, 1e9)
        os.kill(holder.pid, ending)
        end = time.monotonic() + 10.0
        while (device.requested, device.clock) != (500.0, None):
            assert time.monotonic() < end
            time.sleep(0.01)
        holder.kill()


def test_44_nv_gpu_powerlimit_setup_1_a_limit_lost_with_the_driver_is_set_again(
    driver: FakeLimits, limiter: Limiter
) -> None:
    clock = FakeClock()
    book = LeaseBook(limiter, clock)
    book.acquire(Peer(1, 0), Access(), ("GPU-1",), CAP, Seconds(60.0), 1)
    driver.devices["GPU-1"].reload()
    clock.advance(LOOK_EVERY)
    book.tick()
    assert driver.devices["GPU-1"].requested == 400.0
    book.close()


def test_45_lact_207_and_1079_a_cap_stays_above_a_floor_and_its_range_is_read_each_time(
    amd: tuple[Any, Limiter],
) -> None:
    gpu, limiter = amd
    with pytest.raises(ControlError, match=r"between 187\.5 W and 750 W"):
        limiter.check(AMD, PowerConfig(cap=Watts(100.0)))
    gpu.high_cap = 400_000_000
    with pytest.raises(ControlError, match="between 100 W and 400 W"):
        limiter.check(AMD, PowerConfig(cap=Watts(500.0)))
    assert gpu.count("set_cap") == 0


def test_zeus_0_16_does_not_raise_a_limit_at_its_start(driver: FakeLimits, leased: Leased) -> None:
    """Its optimiser sets the maximum first and leaves it there: found at 500 W, the GPU stays at 700 W."""
    with leased("GPU-1").applied(PowerConfig(sm_clock=Hertz(1.5e9))):
        assert driver.devices["GPU-1"].requested == 500.0
    assert all(what != "cap" for _, what, _ in driver.calls)
