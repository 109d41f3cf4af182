"""A GPU by any name that a person, torch or a variable has for it is the device that its driver knows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
import torch

from energyopt.compose import caps, meters
from energyopt.core.clock import MonotonicClock
from energyopt.core.errors import SensorUnavailableError, UsageError
from telemetry import names
from telemetry.amd.source import AmdGpu
from telemetry.names import address, driver_names, ordinal
from telemetry.visible import GpuIdentity

Machine = Callable[[int], Any]
CLOCK = MonotonicClock()
NVIDIA = (
    GpuIdentity("GPU-11111111-0000-4000-8000-000000000000", "H100", "00000000:17:00.0"),
    GpuIdentity("GPU-22222222-0000-4000-8000-000000000000", "H100", "00000000:65:00.0"),
)


@pytest.fixture
def rocm(tmp_path: Path) -> Path:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    return tmp_path


@pytest.fixture
def nvidia(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "list_gpus", lambda: NVIDIA)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("00000000:17:00.0", (0, 0x17, 0, 0)),
        ("0000:c1:00.3", (0, 0xC1, 0, 3)),
        ("C1:00.3", (0, 0xC1, 0, 3)),
        ("0001:C1:00.3", (1, 0xC1, 0, 3)),
        ("c1:00", None),
        ("c1:00.9", None),
        ("GPU-1", None),
    ],
)
def test_addresses(text: str, numbers: tuple[int, ...] | None) -> None:
    assert address(text) == numbers


def test_ordinals() -> None:
    assert (ordinal("cuda:0"), ordinal("hip:12"), ordinal("cuda:"), ordinal("cpu:0"), ordinal("cuda:99999")) == (
        *(0, 12),
        *(None, None, None),
    )


@pytest.mark.usefixtures("nvidia")
def test_nvidia_by_address_by_number_and_by_uuid(tmp_path: Path) -> None:
    first, second = (gpu.uuid for gpu in NVIDIA)
    named = ["65:00.0", "cuda:1", second.removeprefix("GPU-"), "0000:17:00.0"]
    assert driver_names(named, CLOCK, {}, root=tmp_path) == (second, first)
    hidden = {"CUDA_VISIBLE_DEVICES": second}
    assert driver_names(["cuda:0"], CLOCK, hidden, root=tmp_path) == (second,)
    with pytest.raises(SensorUnavailableError, match=r"cuda:1 is not among the 2 GPUs"):
        driver_names(["cuda:1"], CLOCK, hidden, root=tmp_path)


def test_a_partitioned_amd_gpu_has_many_numbers_and_one_name(
    amd_machine: Machine, rocm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPX: eight logical devices of the first socket are numbered before the second one, which is whole (SPX)."""
    state = amd_machine(9)
    for index in range(8):
        state.gpus[index].bus, state.gpus[index].function, state.gpus[index].serial = 3, index, b"abc"
    whole, divided = "AMD-000000000000abc8", "AMD-0000000000000abc"
    assert driver_names(["hip:3", "0000:0b:00.0", "GPU-000000000000ABC8"], CLOCK, {}, root=rocm) == (divided, whole)
    assert driver_names(["0000:03:00.5", "03:00.0"], CLOCK, {}, root=rocm) == (divided,), "each has an address"
    seen = names._amd(CLOCK, rocm)
    monkeypatch.setattr(names, "_amd", lambda clock, root: seen)
    for environment, number, expected in (
        ({}, 0, divided),
        ({}, 7, divided),
        ({}, 8, whole),
        ({"HIP_VISIBLE_DEVICES": "8,3"}, 0, whole),
        ({"HIP_VISIBLE_DEVICES": "8,3"}, 1, divided),
        ({"ROCR_VISIBLE_DEVICES": "7,8", "CUDA_VISIBLE_DEVICES": "1"}, 0, whole),
        ({"ROCR_VISIBLE_DEVICES": "GPU-000000000000ABC8"}, 0, whole),
    ):
        assert driver_names([f"cuda:{number}"], CLOCK, environment, root=rocm) == (expected,)
    with pytest.raises(SensorUnavailableError, match="cuda:2 is not among the 2 GPUs"):
        driver_names(["cuda:2"], CLOCK, {"HIP_VISIBLE_DEVICES": "8,3"}, root=rocm)


def test_why_a_driver_lists_no_gpu_is_told(rocm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That cuda:0 is not among no GPUs helps nobody whose driver was replaced without a restart."""

    def replaced() -> tuple[GpuIdentity, ...]:
        raise SensorUnavailableError("NVIDIA GPUs cannot be read: Driver/library version mismatch.")

    def absent() -> tuple[GpuIdentity, ...]:
        raise SensorUnavailableError("NVIDIA GPUs cannot be read: Shared Library Not Found.") from pynvml.NVMLError(
            pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
        )

    def stuck(process: object) -> tuple[AmdGpu, ...]:
        raise SensorUnavailableError("AMD GPUs cannot be listed: amdsmi is not installed.")

    monkeypatch.setattr(names, "list_amd", stuck)
    monkeypatch.setattr(names, "list_gpus", replaced)
    with pytest.raises(SensorUnavailableError, match=r"not among the 0 GPUs.*version mismatch\. AMD.*not installed\."):
        driver_names(["cuda:0"], CLOCK, {}, root=rocm)
    monkeypatch.setattr(names, "list_gpus", absent)
    with pytest.raises(SensorUnavailableError) as refused:
        driver_names(["cuda:0"], CLOCK, {}, root=rocm)
    assert "NVIDIA" not in str(refused.value), "who has no such driver need not hear of it"


def test_names_of_drivers_ask_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "list_gpus", lambda: pytest.fail("a driver was asked"))
    given = ("GPU-22222222-0000-4000-8000-000000000000", "AMD-000000000000abc8", "MIG-1", "cpu:0")
    assert driver_names(given, CLOCK, {}) == given


def test_what_torch_says_on_rocm_is_what_limits_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """``serve --power-cap`` on ROCm: torch shows the serial's characters as the bytes of a UUID."""
    shown = "35343661-6263-6465-6638-303030303031"
    monkeypatch.setattr(meters, "choose_device", lambda kind: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(meters, "device_identity", lambda device: f"GPU-{shown}")
    assert meters.device_identities("auto", 1) == ("AMD-546abcdef8000001",)


@pytest.mark.usefixtures("nvidia")
def test_a_cap_on_a_gpu_that_is_not_here_is_refused_with_what_would_do() -> None:
    with pytest.raises(UsageError, match="name one by UUID, by PCI address or as cuda:0"):
        caps.machine_gpus(["gpu-zero"])
    assert caps.machine_gpus(["17:00.0"]) == (NVIDIA[0].uuid,)
