"""Which sensors measure the devices an engine runs on, and in words why others do not.

The boundary is the accelerators in use: GPUs alone for an engine on GPUs, packages and DRAM for one on the CPU. A
missing GPU meter is never replaced by an estimate of something else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from energyopt.core.clock import Clock
from energyopt.core.errors import ConfigError, SensorUnavailableError
from energyopt.core.results import Scope

from .estimate import EstimatedCpuSource
from .gpus import GpuFinder, describe
from .ports import PowerSource, SensorId, StatusSource
from .rapl import find_rapl
from .replay import ReplaySource
from .visible import normal_uuid

MeterKind = Literal["auto", "nvml", "amdsmi", "rapl", "estimated", "none"]
KINDS: tuple[MeterKind, ...] = ("auto", "nvml", "amdsmi", "rapl", "estimated", "none")
VENDORS = {"nvml": "nvidia", "amdsmi": "amd"}
REPLAY = "replay:"


@dataclass(frozen=True, slots=True)
class Detection:
    """What will be measured, and sentences about what was found, what not and why.

    ``names`` tells what a sensor calls the devices that were asked for by another name.
    """

    sources: tuple[PowerSource, ...]
    reasons: tuple[str, ...]
    statuses: tuple[StatusSource, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)


def check_kind(kind: str) -> str:
    """The kind of meter, a recording's path made absolute. Raises ConfigError for one that does not exist."""
    if kind.startswith(REPLAY):
        path = Path(kind.removeprefix(REPLAY)).absolute()
        if not path.is_file():
            raise ConfigError(f"meter = {kind!r} is not allowed: {path} is no file.")
        return f"{REPLAY}{path}"
    if kind not in KINDS:
        raise ConfigError(f"meter = {kind!r} is not allowed: expected one of {', '.join(KINDS)}, {REPLAY}FILE.")
    return kind


def detect(
    kind: str,
    devices: Sequence[str],
    clock: Clock,
    *,
    root: Path = Path("/"),
    environment: Mapping[str, str] = os.environ,
) -> Detection:
    """Find the sensors of ``devices`` ("cpu:0", GPU UUIDs, or "cuda:N" as this process counts them).

    "auto" never fails: what cannot be measured is a reason. A kind that is asked for by name and not available
    raises SensorUnavailableError; an unknown kind ConfigError. "replay:FILE" plays a recording in place of a sensor.
    """
    kind = check_kind(kind)
    if kind == "none":
        return Detection((), ("Energy is not measured: the meter is set to none.",))
    gpus = [device for device in devices if not device.startswith("cpu")]
    finder = _Finder(clock, root, environment)
    if kind.startswith(REPLAY):
        return finder.replay(Path(kind.removeprefix(REPLAY)), devices)
    if kind == "auto":
        return finder.gpus_or_nothing(gpus) if gpus else finder.best_of_cpu()
    if kind in VENDORS:
        if not gpus:
            raise SensorUnavailableError(f"The meter {kind} covers GPUs only, but the engine runs on the CPU.")
        return finder.gpus(gpus, (VENDORS[kind],))
    if gpus:
        raise SensorUnavailableError(f"The meter {kind} covers CPUs only, but the engine runs on {', '.join(gpus)}.")
    return finder.rapl() if kind == "rapl" else finder.estimate()


class _Finder:
    """One method a kind; each raises SensorUnavailableError unless its name says otherwise."""

    def __init__(self, clock: Clock, root: Path, environment: Mapping[str, str]) -> None:
        self._clock = clock
        self._root = root
        self._environment = environment

    def gpus(self, devices: Sequence[str], vendors: Sequence[str] = ("nvidia", "amd")) -> Detection:
        """All of the GPUs or none: a part would pass for the whole."""
        finder = GpuFinder(self._clock, self._root, self._environment)
        sources, statuses, notes = finder.find(devices, vendors)
        return Detection(sources, notes, statuses, finder.names)

    def gpus_or_nothing(self, devices: Sequence[str]) -> Detection:
        try:
            return self.gpus(devices)
        except SensorUnavailableError as error:
            return Detection((), (f"GPU energy is not measured. {error}",))

    def replay(self, path: Path, devices: Sequence[str]) -> Detection:
        if len(devices) != 1:
            raise ConfigError(f"A recording replays one device, but {len(devices)} are in use.")
        device = normal_uuid(devices[0])
        scope = Scope.CPU_PACKAGE if device.startswith("cpu") else Scope.GPU
        source = ReplaySource(self._clock, path, SensorId(device, scope))
        return Detection((source,), (f"{device} is not measured: {path} is replayed in its place.",))

    def rapl(self) -> Detection:
        sources = find_rapl(self._clock, self._root / "sys/class/powercap")
        return Detection(sources, tuple(describe(source) for source in sources))

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
