"""Which GPUs a process sees: ``CUDA_VISIBLE_DEVICES`` in all its forms, as UUIDs.

An index there counts CUDA's order, which is fastest-first unless ``CUDA_DEVICE_ORDER=PCI_BUS_ID``; a driver library
counts by PCI address. Indices are translated only where the two orders cannot differ.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from energyopt.core.errors import SensorUnavailableError


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """A physical GPU. ``uuid`` begins with ``GPU-``; ``pci`` sorts in bus order; ``instances`` are MIG UUIDs."""

    uuid: str
    name: str
    pci: str
    instances: tuple[str, ...] = ()


def visible_gpus(environment: Mapping[str, str], gpus: Sequence[GpuIdentity]) -> tuple[str, ...]:
    """UUIDs of the GPUs that CUDA shows to a process with this environment, in CUDA's order.

    As CUDA does, stops at the first entry that names no device. A MIG instance stands for its parent. Raises
    SensorUnavailableError where an index is ambiguous or a MIG instance belongs to no GPU here.
    """
    ordered = sorted(gpus, key=lambda gpu: gpu.pci)
    value = environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return tuple(gpu.uuid for gpu in ordered)
    same = len({gpu.name for gpu in ordered}) <= 1
    by_index = same or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    chosen: list[str] = []
    for word in (entry.strip() for entry in value.split(",")):
        uuid = _by_index(word, ordered, by_index) if _is_index(word) else _by_uuid(word, ordered)
        if uuid is None:
            break
        if uuid not in chosen:
            chosen.append(uuid)
    return tuple(chosen)


def visible_amd(environment: Mapping[str, str], gpus: Sequence[str]) -> tuple[str, ...]:
    """The GPUs that HIP shows to a process, of ``gpus`` in HIP's order.

    ``ROCR_VISIBLE_DEVICES`` takes indices and UUIDs and comes first; ``HIP_VISIBLE_DEVICES``, or CUDA's variable, which
    HIP reads too, then counts what is left. Each stops at the first entry that names no device.
    """
    left = _listed(environment.get("ROCR_VISIBLE_DEVICES"), gpus)
    second = environment.get("HIP_VISIBLE_DEVICES", environment.get("CUDA_VISIBLE_DEVICES"))
    return tuple(_listed(second, left))


def _listed(value: str | None, gpus: Sequence[str]) -> Sequence[str]:
    if value is None:
        return gpus
    chosen: list[str] = []
    for word in (entry.strip() for entry in value.split(",")):
        name = normal_uuid(word)
        index = int(word) if word.isdigit() else gpus.index(name) if name in gpus else -1
        if not 0 <= index < len(gpus):
            break
        chosen.append(gpus[index])
    return chosen


def normal_uuid(device: str) -> str:
    """A device's identity as telemetry spells it, from what torch says: ``GPU-`` and a UUID, or ``AMD-`` and a serial.

    torch leaves NVIDIA's ``GPU-`` out. On ROCm it shows the 16 characters of the serial number as if they were the
    bytes of a UUID; HIP itself writes ``GPU-`` and those characters.
    """
    word = device.removeprefix("GPU-")
    if len(word) == 36 and word.count("-") == 4:
        serial = _as_characters(word)
        return f"GPU-{word}" if serial is None else f"AMD-{serial}"
    return f"AMD-{word.lower()}" if device.startswith("GPU-") and _is_serial(word) else device


def _as_characters(uuid: str) -> str | None:
    """The 16 hex digits whose character codes make this UUID; None for a UUID that is one."""
    try:
        word = bytes.fromhex(uuid.replace("-", "")).decode("ascii")
    except ValueError:
        return None
    return word.lower() if _is_serial(word) else None


def _is_serial(word: str) -> bool:
    return len(word) == 16 and all(digit in string.hexdigits for digit in word)


def _is_index(word: str) -> bool:
    return word.lstrip("-").isdigit()


def _by_index(word: str, ordered: Sequence[GpuIdentity], by_index: bool) -> str | None:
    index = int(word)
    if not 0 <= index < len(ordered):
        return None
    if not by_index:
        raise SensorUnavailableError(
            f"CUDA_VISIBLE_DEVICES names GPU {index}, but GPUs of several models are present and CUDA sorts them by "
            "speed; set CUDA_DEVICE_ORDER=PCI_BUS_ID or name GPUs by UUID."
        )
    return ordered[index].uuid


def _by_uuid(word: str, ordered: Sequence[GpuIdentity]) -> str | None:
    if word.startswith("MIG-GPU-"):
        word = word.removeprefix("MIG-").partition("/")[0]
    elif word.startswith("MIG-"):
        parents = [gpu.uuid for gpu in ordered if any(one.startswith(word) for one in gpu.instances)]
        if len(parents) != 1:
            raise SensorUnavailableError(f"CUDA_VISIBLE_DEVICES names {word}, which is part of no GPU that is here.")
        return parents[0]
    matches = [gpu.uuid for gpu in ordered if word.startswith("GPU-") and gpu.uuid.startswith(word)]
    return matches[0] if len(matches) == 1 else None
