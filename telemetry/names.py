"""What a driver calls a GPU that somebody names: by UUID, by serial, by PCI address, or by number as a process counts.

A number ("cuda:1", "hip:1") counts what the variables of that vendor leave visible; on ROCm each partition of a GPU
has a number of its own. Nothing here reads a sensor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from energyopt.core.clock import Clock
from energyopt.core.errors import SensorUnavailableError

from .amd.process import AmdProcess
from .amd.source import AmdGpu, amd_driver_loaded, list_amd
from .nvml import list_gpus
from .nvml_library import library_missing
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


@dataclass(frozen=True, slots=True)
class _Machine:
    """The GPUs of both vendors; ``reasons`` say why a driver that is there lists none."""

    nvidia: Sequence[GpuIdentity]
    amd: Sequence[AmdGpu]
    reasons: tuple[str, ...]

    def at(self, where: tuple[int, ...]) -> str | None:
        """The device at a PCI address; that of a partition is its GPU's."""
        known = {address(gpu.pci): gpu.uuid for gpu in self.nvidia}
        known |= {address(place): gpu.info.device for gpu in self.amd for place in gpu.addresses}
        return known.get(where)


def driver_names(
    devices: Sequence[str], clock: Clock, environment: Mapping[str, str], *, root: Path = Path("/")
) -> tuple[str, ...]:
    """Each device as its driver names it, in order, each once.

    Drivers are asked only where a name is not one already. Raises SensorUnavailableError for one that is not here.
    """
    if all(map(is_plain, devices)):
        return tuple(dict.fromkeys(map(normal_uuid, devices)))
    machine = _look(clock, root)
    return tuple(dict.fromkeys(_name(device, machine, environment) for device in devices))


def _name(device: str, machine: _Machine, environment: Mapping[str, str]) -> str:
    if is_plain(device):
        return normal_uuid(device)
    where, number, nvidia, amd = address(device), ordinal(device), machine.nvidia, machine.amd
    found = None if where is None else machine.at(where)
    if number is not None:
        # torch says "cuda" on ROCm too: the number then counts AMD's devices.
        hip = device.startswith("hip") or not nvidia
        seen = visible_amd(environment, hip_order(amd)) if hip else visible_gpus(environment, nvidia)
        found = seen[number] if number < len(seen) else None
    if found is not None:
        return found
    count = len(nvidia) + len(amd)
    why = [f"{device} is not among the {count} GPUs of this machine: name one by UUID, by PCI address or as cuda:0."]
    raise SensorUnavailableError(" ".join([*why, *machine.reasons]))


def _look(clock: Clock, root: Path) -> _Machine:
    reasons, nvidia, amd = list[str](), tuple[GpuIdentity, ...](), tuple[AmdGpu, ...]()
    try:
        nvidia = list_gpus()
    except SensorUnavailableError as error:
        if not library_missing(error):
            reasons.append(error.message)
    try:
        amd = _amd(clock, root)
    except SensorUnavailableError as error:
        reasons.append(error.message)
    return _Machine(nvidia, amd, tuple(reasons))


def _amd(clock: Clock, root: Path) -> tuple[AmdGpu, ...]:
    """Raises SensorUnavailableError where there is a driver that lists none."""
    if not amd_driver_loaded(root):
        return ()
    process = AmdProcess(clock)
    try:
        return list_amd(process)
    finally:
        process.close()
