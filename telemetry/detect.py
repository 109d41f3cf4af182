"""Which sensors measure the devices an engine runs on, and in words why others do not.

The boundary is the accelerators in use: GPUs alone for an engine on GPUs, packages and DRAM for one on the CPU. A
missing GPU meter is never replaced by an estimate of something else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from energyopt.core.clock import Clock
from energyopt.core.errors import ConfigError, SensorUnavailableError

from .estimate import EstimatedCpuSource
from .nvml import NvmlSource, list_gpus
from .nvml_status import NvmlStatus
from .ports import PowerSource, StatusSource
from .rapl import find_rapl
from .visible import GpuIdentity, normal_uuid, visible_gpus

MeterKind = Literal["auto", "nvml", "rapl", "estimated", "none"]
KINDS: tuple[MeterKind, ...] = ("auto", "nvml", "rapl", "estimated", "none")


@dataclass(frozen=True, slots=True)
class Detection:
    """What will be measured, and sentences about what was found, what not and why."""

    sources: tuple[PowerSource, ...]
    reasons: tuple[str, ...]
    statuses: tuple[StatusSource, ...] = ()


def detect(
    kind: MeterKind,
    devices: Sequence[str],
    clock: Clock,
    *,
    root: Path = Path("/"),
    environment: Mapping[str, str] = os.environ,
) -> Detection:
    """Find the sensors of ``devices`` ("cpu:0", GPU UUIDs, or "cuda:N" as this process counts them).

    "auto" never fails: what cannot be measured is a reason. A kind that is asked for by name and not available
    raises SensorUnavailableError; an unknown kind ConfigError.
    """
    if kind not in KINDS:
        raise ConfigError(f"meter = {kind!r} is not allowed: expected one of {', '.join(KINDS)}.")
    if kind == "none":
        return Detection((), ("Energy is not measured: the meter is set to none.",))
    gpus = [device for device in devices if not device.startswith("cpu")]
    finder = _Finder(clock, root, environment)
    if kind == "auto":
        return finder.gpus_or_nothing(gpus) if gpus else finder.best_of_cpu()
    if gpus and kind in ("rapl", "estimated"):
        raise SensorUnavailableError(f"The meter {kind} covers CPUs only, but the engine runs on {', '.join(gpus)}.")
    if not gpus and kind == "nvml":
        raise SensorUnavailableError("The meter nvml covers NVIDIA GPUs only, but the engine runs on the CPU.")
    if kind == "nvml":
        return finder.gpus(gpus)
    return finder.rapl() if kind == "rapl" else finder.estimate()


class _Finder:
    """One method a kind; each raises SensorUnavailableError unless its name says otherwise."""

    def __init__(self, clock: Clock, root: Path, environment: Mapping[str, str]) -> None:
        self._clock = clock
        self._root = root
        self._environment = environment

    def gpus(self, devices: Sequence[str]) -> Detection:
        """All of the GPUs or none: a part would pass for the whole."""
        present = list_gpus()
        with ExitStack() as opened:
            sources: dict[str, NvmlSource] = {}
            notes: list[str] = []
            for device in devices:
                source = NvmlSource(self._clock, self._uuid(device, present))
                opened.callback(source.close)
                first = sources.setdefault(source.group or source.sensor.device, source)
                if first is source:
                    notes.append(_describe(source))
                elif first.sensor.device != source.sensor.device:
                    notes.append(f"{source.sensor.device} shares the sensor of {first.sensor.device} and is in it.")
            statuses = tuple(NvmlStatus(self._clock, source.sensor.device) for source in sources.values())
            opened.pop_all()
        return Detection(tuple(sources.values()), tuple(notes), statuses)

    def gpus_or_nothing(self, devices: Sequence[str]) -> Detection:
        try:
            return self.gpus(devices)
        except SensorUnavailableError as error:
            return Detection((), (f"GPU energy is not measured. {error}",))

    def rapl(self) -> Detection:
        sources = find_rapl(self._clock, self._root / "sys/class/powercap")
        return Detection(sources, tuple(_describe(source) for source in sources))

    def estimate(self) -> Detection:
        source = EstimatedCpuSource(self._clock, root=self._root)
        return Detection((source,), (source.note,))

    def best_of_cpu(self) -> Detection:
        """RAPL, else the estimate, else nothing; says why not the better one."""
        reasons: list[str] = []
        attempts: tuple[Callable[[], Detection], ...] = (self.rapl, self.estimate)
        for attempt in attempts:
            try:
                found = attempt()
                return Detection(found.sources, (*reasons, *found.reasons))
            except SensorUnavailableError as error:
                reasons.append(str(error))
        return Detection((), tuple(reasons))

    def _uuid(self, device: str, present: Sequence[GpuIdentity]) -> str:
        word, _, index = device.partition(":")
        if word != "cuda" or not index.isdigit():
            return normal_uuid(device)
        visible = visible_gpus(self._environment, present)
        if int(index) >= len(visible):
            raise SensorUnavailableError(f"{device} is not among the {len(visible)} NVIDIA GPUs this process sees.")
        return visible[int(index)]


def _describe(source: PowerSource) -> str:
    return f"{source.sensor.device} ({source.sensor.scope}) is measured by {source.source}."
