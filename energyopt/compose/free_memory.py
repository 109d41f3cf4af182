"""Memory that a new engine could have: of this host, and of each GPU whose driver tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import pynvml

from energyopt.core.clock import MonotonicClock
from energyopt.core.errors import SensorUnavailableError
from energyopt.core.units import bytes_from_kibibytes
from telemetry.amd.process import AmdProcess
from telemetry.amd.source import list_amd
from telemetry.nvml_library import close_nvml, open_nvml, physical_handle

HOST = "host"
PCI = Path("/sys/bus/pci/devices")


class FreeMemory:
    """Free bytes by place: ``host``, and each device that tells; a place that does not tell is absent.

    ``devices`` are asked for at the first question and once: finding them may start a driver's helper. AMD's memory is
    read from the kernel, by PCI address, which needs no library.
    """

    def __init__(self, devices: Callable[[], Sequence[str]] = tuple, pci: Path = PCI) -> None:
        self._ask, self._pci = devices, pci

    def __call__(self) -> Mapping[str, int]:
        found = {HOST: host_memory(), **{device: self._free(device) for device in self._devices}}
        return {place: free for place, free in found.items() if free is not None}

    @cached_property
    def _devices(self) -> Sequence[str]:
        try:
            return tuple(device for device in self._ask() if not device.startswith("cpu"))
        except SensorUnavailableError:
            return ()

    @cached_property
    def _addresses(self) -> Mapping[str, str]:
        process = AmdProcess(MonotonicClock())
        process.join()
        try:
            return {gpu.info.device: gpu.info.pci for gpu in list_amd(process) if gpu.info.pci is not None}
        except SensorUnavailableError:
            return {}
        finally:
            process.leave()

    def _free(self, device: str) -> int | None:
        if not device.startswith("AMD-"):
            return nvidia_memory(device)
        address = self._addresses.get(device)
        return None if address is None else amd_memory(self._pci / address)


def host_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Memory of this host that a new process could have; None where it does not tell."""
    try:
        lines = meminfo.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    words = next((line.split() for line in lines if line.startswith("MemAvailable:")), [])
    return bytes_from_kibibytes(int(words[1])) if len(words) > 1 and words[1].isdigit() else None


def nvidia_memory(device: str) -> int | None:
    """Free bytes of a GPU by UUID; None where the driver does not tell."""
    try:
        open_nvml()
    except SensorUnavailableError:
        return None
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(physical_handle(device)).free)
    except pynvml.NVMLError:
        return None
    finally:
        close_nvml()


def amd_memory(folder: Path) -> int | None:
    """Free bytes of the GPU whose PCI folder of the kernel this is; None where it does not tell."""
    try:
        total, used = (int(_word(folder / f"mem_info_vram_{name}")) for name in ("total", "used"))
    except (OSError, ValueError):
        return None
    return total - used


def _word(file: Path) -> str:
    with file.open(encoding="ascii", errors="replace") as opened:
        return opened.read(64)
