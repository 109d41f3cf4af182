"""Sensors of named GPUs, of either vendor: all of them or none, since a part would pass for the whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from energyopt.core.clock import Clock
from energyopt.core.errors import SensorUnavailableError

from .amd.process import AmdProcess
from .amd.source import AmdGpu, AmdSource, AmdStatus, amd_driver_loaded, list_amd
from .names import hip_order, ordinal
from .nvml import NvmlSource, list_gpus
from .nvml_status import NvmlStatus
from .ports import PowerSource, StatusSource
from .visible import normal_uuid, visible_amd, visible_gpus


class GpuFinder:
    """Finds what measures the GPUs that a process names. ``root`` is where ``sys`` and ``dev`` are.

    ``names`` then tells what a sensor calls the devices whose own name is another: MIG instances, GPUs by ordinal or
    in torch's spelling, GPUs that are metered as part of a module.
    """

    def __init__(self, clock: Clock, root: Path, environment: Mapping[str, str]) -> None:
        self._clock = clock
        self._root = root
        self._environment = environment
        self.names: dict[str, str] = {}

    def find(
        self, devices: Sequence[str], vendors: Sequence[str]
    ) -> tuple[tuple[PowerSource, ...], tuple[StatusSource, ...], tuple[str, ...]]:
        """Sources, statuses and notes. Raises SensorUnavailableError if one of the GPUs cannot be measured.

        ``vendors`` limits where to look: "nvidia", "amd".
        """
        nvidia = [device for device in devices if not self._is_amd(device, vendors)]
        amd = [device for device in devices if device not in nvidia]
        with ExitStack() as opened:
            found: list[tuple[PowerSource, StatusSource]] = []
            notes: list[str] = []
            if nvidia:
                found += self._nvidia(nvidia, notes, opened)
            if amd:
                found += self._amd(amd, notes, opened)
            opened.pop_all()
        return tuple(source for source, _ in found), tuple(status for _, status in found), tuple(notes)

    def _is_amd(self, device: str, vendors: Sequence[str]) -> bool:
        """By name; an ordinal ("cuda:0", which torch says on ROCm too) belongs to the driver that is loaded."""
        if "nvidia" not in vendors:
            return True
        if "amd" not in vendors:
            return False
        counted = device.startswith("cuda:") and amd_driver_loaded(self._root)
        return normal_uuid(device).startswith("AMD-") or (counted and not _has_nvidia())

    def _nvidia(
        self, devices: Sequence[str], notes: list[str], opened: ExitStack
    ) -> Iterator[tuple[PowerSource, StatusSource]]:
        present = list_gpus()
        sources: dict[str, NvmlSource] = {}
        for device in devices:
            index = ordinal(device)
            uuid = normal_uuid(device) if index is None else _pick(visible_gpus(self._environment, present), index)
            source = NvmlSource(self._clock, uuid)
            opened.callback(source.close)
            first = sources.setdefault(source.group or source.sensor.device, source)
            self._name(device, first)
            if first is not source:
                if first.sensor.device != source.sensor.device:
                    notes.append(f"{source.sensor.device} shares the sensor of {first.sensor.device} and is in it.")
                continue
            notes.append(describe(source))
            yield source, NvmlStatus(self._clock, source.sensor.device)

    def _amd(
        self, devices: Sequence[str], notes: list[str], opened: ExitStack
    ) -> Iterator[tuple[PowerSource, StatusSource]]:
        process = AmdProcess(self._clock)
        opened.callback(process.close)
        present = list_amd(process)
        chosen = {device: self._choose(device, present) for device in devices}
        for gpu in dict.fromkeys(chosen.values()):
            source = AmdSource(self._clock, process, gpu)
            for device in (device for device, one in chosen.items() if one == gpu):
                self._name(device, source)
            notes.append(describe(source))
            yield source, AmdStatus(process, gpu)

    def _name(self, device: str, source: PowerSource) -> None:
        if device != source.sensor.device:
            self.names[device] = source.sensor.device

    def _choose(self, device: str, present: Sequence[AmdGpu]) -> AmdGpu:
        by_name = {gpu.info.device: gpu for gpu in present}
        index = ordinal(device)
        name = normal_uuid(device)
        if index is not None:
            name = _pick(visible_amd(self._environment, hip_order(present)), index)
        if name not in by_name:
            raise SensorUnavailableError(f"{device} is not among the {len(present)} AMD GPUs of this machine.")
        return by_name[name]


def describe(source: PowerSource) -> str:
    """A sentence on what measures what."""
    return f"{source.sensor.device} ({source.sensor.scope}) is measured by {source.source}."


def _has_nvidia() -> bool:
    try:
        return bool(list_gpus())
    except SensorUnavailableError:
        return False


def _pick(visible: Sequence[str], index: int) -> str:
    if index >= len(visible):
        raise SensorUnavailableError(f"cuda:{index} is not among the {len(visible)} GPUs this process sees.")
    return visible[index]
