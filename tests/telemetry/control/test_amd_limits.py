"""Limits of AMD GPUs through the real amdsmi over the stub library, in its own process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from energyopt.core.clock import FakeClock, MonotonicClock
from energyopt.core.config import PowerConfig
from energyopt.core.errors import ControlError
from energyopt.core.units import Hertz, Watts
from telemetry.amd.process import AmdProcess
from telemetry.control.amd_limits import AmdLimits
from telemetry.control.journal import Journal
from telemetry.control.limits import Limiter

DEVICE = "AMD-000000000000abc0"
Machine = Callable[[int], Any]


@pytest.fixture
def gpu(amd_machine: Machine) -> Any:
    return amd_machine(1).gpus[0]


@pytest.fixture
def process(gpu: Any) -> Iterator[AmdProcess]:
    made = AmdProcess(MonotonicClock())
    yield made
    made.close()


@pytest.fixture
def backend(process: AmdProcess, tmp_path: Path) -> AmdLimits:
    return AmdLimits(process, module=tmp_path)


@pytest.fixture
def amd_limiter(backend: AmdLimits, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> Limiter:
    monkeypatch.setattr(backend, "forbidden", lambda device: None)
    return Limiter(backend, journal, clock=FakeClock())


def test_the_library_is_not_imported_here(backend: AmdLimits) -> None:
    """RLinf#1507, amdsmi#186: importing it can break torch."""
    backend.limits(DEVICE)
    assert "amdsmi" not in sys.modules


def test_caps_are_microwatts_for_the_driver_and_watts_here(backend: AmdLimits, gpu: Any) -> None:
    limits = backend.limits(DEVICE)
    assert (limits.requested, limits.enforced, limits.default, limits.high) == (700.0, 700.0, 750.0, 750.0)
    assert limits.max_clock == 2.1e9
    backend.set_cap(DEVICE, Watts(512.5))
    assert gpu.cap == 512_500_000
    gpu.cap, gpu.default_cap, gpu.low_cap, gpu.high_cap = 700, 750, 300, 750  # a hypervisor's host counts watts
    backend.set_cap(DEVICE, Watts(500.0))
    assert gpu.cap == 500
    assert backend.limits(DEVICE).low == 300.0


def test_a_lowest_cap_of_nothing_is_not_offered(backend: AmdLimits, gpu: Any) -> None:
    """ilya-zlobintsev/LACT#207: a cap that is too low switches the limiter off."""
    assert backend.limits(DEVICE).low == 750.0 / 4


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"default_cap": 0, "low_cap": 2**64 - 1, "high_cap": 2**64 - 1}, "no range of power caps"),
        ({"high_cap": 0}, "no range of power caps"),
        ({"cap": 0}, "no range of power caps"),
        ({"low_cap": 750_000_000}, "no cap but 750 W"),
    ],
)
def test_a_board_that_takes_no_cap_says_why(amd_limiter: Limiter, gpu: Any, fields: dict[str, int], words: str) -> None:
    """MxGPU-Virtualization#26, legacy-rocm-build#5231, rocm_smi_lib#190: fixed caps and ranges of all ones."""
    for name, value in fields.items():
        setattr(gpu, name, value)
    allowed, reason = amd_limiter.can_cap(DEVICE)
    assert not allowed
    assert words in reason


def test_a_refused_cap_is_an_error_with_the_librarys_words(amd_limiter: Limiter, gpu: Any, journal: Journal) -> None:
    gpu.fail("set_cap", 10)
    with pytest.raises(ControlError, match="NO_PERM"):
        amd_limiter.take(DEVICE, PowerConfig(cap=Watts(500.0)))
    assert journal.entries() == ()


def test_a_range_that_shrank_is_read_anew(amd_limiter: Limiter, gpu: Any) -> None:
    """LACT#1079."""
    amd_limiter.check(DEVICE, PowerConfig(cap=Watts(720.0)))
    gpu.high_cap = 710_000_000
    with pytest.raises(ControlError, match="and 710 W"):
        amd_limiter.check(DEVICE, PowerConfig(cap=Watts(720.0)))


def test_clocks_go_back_to_automatic_and_not_to_the_range_that_is_there(amd_limiter: Limiter, gpu: Any) -> None:
    """ml-energy/zeus#254: a reset that sets 800-900 MHz again leaves them locked."""
    entry = amd_limiter.take(DEVICE, PowerConfig(cap=Watts(500.0), sm_clock=Hertz(1.2e9)))
    assert (gpu.clock_low, gpu.clock_high, gpu.perf_level, gpu.cap) == (500, 1200, 3, 500_000_000)
    amd_limiter.put_back(entry)
    assert (gpu.clock_low, gpu.clock_high, gpu.perf_level, gpu.cap) == (500, 2100, 0, 700_000_000)


def test_clocks_that_someone_bounded_by_hand_before_are_so_again(amd_limiter: Limiter, gpu: Any) -> None:
    gpu.clock_low, gpu.clock_high, gpu.perf_level = 800, 1800, 3
    entry = amd_limiter.take(DEVICE, PowerConfig(sm_clock=Hertz(1.2e9)))
    assert gpu.clock_high == 1200
    amd_limiter.put_back(entry)
    assert (gpu.clock_low, gpu.clock_high, gpu.perf_level) == (800, 1800, 3)


def test_another_performance_level_comes_back(amd_limiter: Limiter, gpu: Any) -> None:
    gpu.perf_level = 2
    amd_limiter.put_back(amd_limiter.take(DEVICE, PowerConfig(sm_clock=Hertz(1.2e9))))
    assert gpu.perf_level == 2


def test_a_memory_clock_that_fell_with_the_core_clock_is_raised_again(backend: AmdLimits, gpu: Any) -> None:
    """ROCm/rocm-systems#8458."""
    gpu.sclk_resets_mclk = 1
    backend.lock_clock(DEVICE, Hertz(1.2e9))
    assert (gpu.clock_high, gpu.memory_high) == (1200, 1300)


def test_the_counter_tells_a_new_life(backend: AmdLimits, gpu: Any) -> None:
    before = backend.life(DEVICE)
    assert not before.ended_before(backend.life(DEVICE))
    gpu.base_uj = 0
    assert before.ended_before(backend.life(DEVICE))


def test_a_device_that_is_not_here_and_a_library_that_dies(backend: AmdLimits, gpu: Any) -> None:
    with pytest.raises(ControlError, match="AMD-9 is not among"):
        backend.limits("AMD-9")
    gpu.fail("cap", -7)
    with pytest.raises(ControlError, match="signal 7"):
        backend.limits(DEVICE)
    with pytest.raises(ControlError, match="tried again"):
        backend.set_cap(DEVICE, Watts(500.0))
