"""``CUDA_VISIBLE_DEVICES`` as CUDA reads it; Zeus 0.16 crashes or measures the wrong board on four of these."""

from __future__ import annotations

import pytest

from energyopt.core.errors import SensorUnavailableError
from telemetry.visible import GpuIdentity, normal_uuid, visible_gpus

A, B, C = (
    GpuIdentity("GPU-aaaa", "H100", "00000000:03:00.0"),
    GpuIdentity("GPU-bbbb", "H100", "00000000:01:00.0"),
    GpuIdentity("GPU-abcc", "H100", "00000000:02:00.0"),
)
GPUS = (A, B, C)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ("GPU-bbbb", "GPU-abcc", "GPU-aaaa")),
        ("", ()),
        ("0", ("GPU-bbbb",)),
        ("2, 0", ("GPU-aaaa", "GPU-bbbb")),
        ("0,-1,1", ("GPU-bbbb",)),
        ("-1", ()),
        ("7", ()),
        ("0,7,1", ("GPU-bbbb",)),
        ("GPU-b", ("GPU-bbbb",)),
        ("GPU-a", ()),
        ("GPU-abcc,1", ("GPU-abcc",)),
        ("GPU-aaaa,GPU-bbbb", ("GPU-aaaa", "GPU-bbbb")),
        ("MIG-GPU-aaaa/1/0", ("GPU-aaaa",)),
        ("NoDevFiles", ()),
    ],
)
def test_forms(value: str | None, expected: tuple[str, ...]) -> None:
    environment = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    assert visible_gpus(environment, GPUS) == expected


def test_an_index_among_several_models_is_ambiguous_unless_ordered_by_bus() -> None:
    """CUDA counts the fastest first, the driver library by bus: the wrong board would be measured."""
    mixed = (*GPUS, GpuIdentity("GPU-slow", "L4", "00000000:00:00.0"))
    with pytest.raises(SensorUnavailableError, match="PCI_BUS_ID"):
        visible_gpus({"CUDA_VISIBLE_DEVICES": "0"}, mixed)
    by_bus = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert visible_gpus(by_bus, mixed) == ("GPU-slow",)


def test_a_mig_instance_stands_for_its_parent_and_a_foreign_one_is_refused() -> None:
    """Zeus 0.16: a bare ValueError, or 0 J."""
    split = GpuIdentity("GPU-mig", "H100", "00000000:04:00.0", ("MIG-0a1b-1", "MIG-0a1b-2"))
    found = visible_gpus({"CUDA_VISIBLE_DEVICES": "MIG-0a1b-2,GPU-aaaa,MIG-0a1b-1"}, (*GPUS, split))
    assert found == ("GPU-mig", "GPU-aaaa")
    with pytest.raises(SensorUnavailableError, match="part of no GPU"):
        visible_gpus({"CUDA_VISIBLE_DEVICES": "MIG-0a1b"}, GPUS)


def test_uuid_without_its_prefix() -> None:
    bare = "01234567-89ab-cdef-0123-456789abcdef"
    assert normal_uuid(bare) == f"GPU-{bare}"
    assert normal_uuid(f"GPU-{bare}") == f"GPU-{bare}"
    assert normal_uuid("MIG-1") == "MIG-1"


@pytest.mark.parametrize(
    "seen", ["31323334-3536-3738-3930-616263646566", "GPU-31323334-3536-3738-3930-616263646566", "GPU-1234567890abcdef"]
)
def test_an_amd_gpus_serial_number_in_its_three_spellings(seen: str) -> None:
    """HIP's UUID holds the characters of the serial number; torch prints their codes."""
    assert normal_uuid(seen) == "AMD-1234567890abcdef"
