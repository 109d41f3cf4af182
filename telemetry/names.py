"""What a driver calls a GPU that somebody names: by UUID, by serial, by PCI address, or by number as a process counts.

A number ("cuda:1", "hip:1") counts what the variables of that vendor leave visible; on ROCm each partition of a GPU
has a number of its own. Nothing here reads a sensor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from energyopt.core.clock import Clock
from energyopt.core.errors import SensorUnavailableError

from .amd.process import AmdProcess
from .amd.source import AmdGpu, amd_driver_loaded, list_amd
from .nvml import list_gpus
from .visible import GpuIdentity, normal_uuid, visible_amd, visible_gpus

_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)
_ORDINAL = re.compile(r"(cuda|hip):([0-9]{1,4})")


def ordinal(device: str) -> int | None:
    """The number in "cuda:1" or "hip:1"; None for a name of another form."""
    found = _ORDINAL.fullmatch(device)
    return None if found is None else int(found[2])


def address(text: str) -> tuple[int, ...] | None:
    """A PCI address as numbers, whichever way it is written; None for what is none."""
    found = _ADDRESS.fullmatch(text)
    return None if found is None else tuple(int(part or "0", 16) for part in found.groups())


def hip_order(gpus: Sequence[AmdGpu]) -> list[str]:
    """The devices in HIP's order, one entry a logical device: a partitioned GPU stands there more than once."""
    return [device for _, device in sorted((number, gpu.info.device) for gpu in gpus for number in gpu.hips)]


def is_plain(device: str) -> bool:
    """Whether a name needs no look at the machine: it is a driver's own."""
    return normal_uuid(device).startswith(("GPU-", "MIG-", "AMD-", "cpu:"))


def driver_names(
    devices: Sequence[str], clock: Clock, environment: Mapping[str, str], *, root: Path = Path("/")
) -> tuple[str, ...]:
    """Each device as its driver names it, in order, each once.

    Drivers are asked only where a name is not one already. Raises SensorUnavailableError for one that is not here.
    """
    if all(map(is_plain, devices)):
        return tuple(dict.fromkeys(map(normal_uuid, devices)))
    nvidia, amd = _nvidia(), _amd(clock, root)
    return tuple(dict.fromkeys(_name(device, nvidia, amd, environment) for device in devices))


def _name(device: str, nvidia: Sequence[GpuIdentity], amd: Sequence[AmdGpu], environment: Mapping[str, str]) -> str:
    if is_plain(device):
        return normal_uuid(device)
    where, number = address(device), ordinal(device)
    if where is not None:
        known = {address(gpu.pci): gpu.uuid for gpu in nvidia}
        known |= {address(gpu.info.pci): gpu.info.device for gpu in amd if gpu.info.pci}
        if where in known:
            return known[where]
    if number is not None:
        # torch says "cuda" on ROCm too: the number then counts AMD's devices.
        hip = device.startswith("hip") or not nvidia
        seen = visible_amd(environment, hip_order(amd)) if hip else visible_gpus(environment, nvidia)
        if number < len(seen):
            return seen[number]
    count = len(nvidia) + len(amd)
    raise SensorUnavailableError(
        f"{device} is not among the {count} GPUs of this machine: name one by UUID, by PCI address or as cuda:0."
    )


def _nvidia() -> tuple[GpuIdentity, ...]:
    try:
        return list_gpus()
    except SensorUnavailableError:
        return ()


def _amd(clock: Clock, root: Path) -> tuple[AmdGpu, ...]:
    if not amd_driver_loaded(root):
        return ()
    process = AmdProcess(clock)
    try:
        return list_amd(process)
    except SensorUnavailableError:
        return ()
    finally:
        process.close()
