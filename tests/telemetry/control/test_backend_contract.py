"""What every driver behind the port promises: the two real ones over their stubs, the one in memory, the plant."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pynvml
import pytest

from energyopt.core.clock import FakeClock, MonotonicClock
from energyopt.core.errors import ControlError
from energyopt.core.units import Hertz, Watts
from telemetry.amd.process import AmdProcess
from telemetry.control.amd_limits import AmdLimits
from telemetry.control.backends import Backends
from telemetry.control.fake import FakeLimits
from telemetry.control.nvml_limits import NvmlLimits
from telemetry.control.plant import Plant
from telemetry.control.ports import LimitBackend

NVIDIA, AMD = "GPU-00000000-0000-4000-8000-000000000000", "AMD-000000000000abc0"
STUBS = Path(__file__).parents[1] / "stubs"


class Subject(NamedTuple):
    backend: LimitBackend
    device: str
    knows_devices: bool = True


@pytest.fixture
def nvml(nameless_nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvmlLimits:
    """The real binding over a copy of the stub of its own, loaded into this process for this test."""
    spec = importlib.util.spec_from_file_location("nvmlstub", STUBS / "nvmlstub.py")
    assert spec is not None
    assert spec.loader is not None
    stub: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stub)
    stub.create(tmp_path / "nvml.state")
    shutil.copy(nameless_nvml, tmp_path / "own.so")
    monkeypatch.setenv("NVMLSTUB_STATE", str(tmp_path / "nvml.state"))
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(tmp_path / "own.so")))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return NvmlLimits(tmp_path)


@pytest.fixture
def amd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AmdLimits]:
    machine: Callable[[int], Any] = request.getfixturevalue("amd_machine")
    machine(1)
    process = AmdProcess(MonotonicClock())
    yield AmdLimits(process, module=tmp_path)
    process.close()


@pytest.fixture(params=["fake", "plant", "nvml", "amd"])
def subject(request: pytest.FixtureRequest) -> Subject:
    if request.param == "fake":
        return Subject(FakeLimits((NVIDIA,)), NVIDIA)
    if request.param == "plant":
        return Subject(Plant(FakeClock()), NVIDIA, False)
    if request.param == "nvml":
        return Subject(request.getfixturevalue("nvml"), NVIDIA)
    return Subject(request.getfixturevalue("amd"), AMD)


def test_limits_are_in_order(subject: Subject) -> None:
    limits = subject.backend.limits(subject.device)
    assert 0 < limits.low <= limits.requested <= limits.high < 2000.0
    assert limits.enforced <= limits.requested
    assert limits.max_clock is None or 1e8 < limits.max_clock < 1e10


def test_a_cap_is_read_back(subject: Subject) -> None:
    backend, device, _ = subject
    for watts in (450.0, 300.5, backend.limits(device).high):
        backend.set_cap(device, Watts(watts))
        assert backend.limits(device).requested == pytest.approx(watts, abs=1.0)
        assert backend.limits(device).enforced <= watts + 1.0


@pytest.mark.parametrize("watts", [1.0, 1e5])
def test_a_cap_outside_the_range_is_refused_and_changes_nothing(subject: Subject, watts: float) -> None:
    backend, device, _ = subject
    if isinstance(backend, AmdLimits) and watts == 1.0:
        pytest.skip("this driver states 0 as its lowest cap; the limiter keeps above a quarter of the highest")
    before = backend.limits(device)
    with pytest.raises(ControlError):
        backend.set_cap(device, Watts(watts))
    assert backend.limits(device) == before


def test_clocks_come_back_as_they_were_told(subject: Subject) -> None:
    backend, device, _ = subject
    found = backend.clocks(device)
    backend.lock_clock(device, Hertz(1.2e9))
    backend.lock_clock(device, Hertz(1.0e9))
    backend.unlock_clock(device, found)
    assert backend.clocks(device) == found
    backend.unlock_clock(device, None)


def test_a_driver_that_lives_on_is_not_taken_for_another(subject: Subject) -> None:
    first = subject.backend.life(subject.device)
    assert not first.ended_before(subject.backend.life(subject.device))


def test_holding_is_idempotent_and_letting_go_never_fails(subject: Subject) -> None:
    backend, device, _ = subject
    for step in (backend.let_go, backend.hold, backend.hold, backend.let_go, backend.let_go):
        step(device)
    assert backend.limits(device).requested > 0


def test_a_device_that_is_not_there(subject: Subject) -> None:
    if not subject.knows_devices:
        pytest.skip("a plant answers to any name")
    backend, absent = subject.backend, f"{subject.device[:4]}ffff"
    with pytest.raises(ControlError, match=absent):
        backend.limits(absent)
    with pytest.raises(ControlError, match=absent):
        backend.set_cap(absent, Watts(400.0))
    with pytest.raises(ControlError, match=absent):
        backend.lock_clock(absent, Hertz(1e9))


def test_neither_vendors_device_is_asked_of_the_other(nvml: NvmlLimits, amd: AmdLimits) -> None:
    both = Backends(nvml, amd)
    assert (both.limits(NVIDIA).high, both.limits(AMD).high) == (700.0, 750.0)
    with pytest.raises(ControlError, match="GPU- or AMD-"):
        both.limits("cpu:0")
