"""Every sensor of this machine, found one by one: what fails is left out with its reason, and looked for again.

Unlike ``detect``, which answers for the devices of one engine and gives all or none, this is for a process that
watches a host: drivers may be loaded, and GPUs appear, while it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from energyopt.core.clock import Clock
from energyopt.core.errors import SensorUnavailableError

from .agent_metrics import CollectorHealth
from .amd.process import AmdProcess
from .amd.source import AmdGpu, AmdSource, AmdStatus, amd_driver_loaded, list_amd
from .detect import Detection
from .estimate import EstimatedCpuSource
from .gpus import describe
from .nvml import NvmlSource, list_gpus
from .nvml_library import library_missing
from .nvml_status import NvmlStatus
from .ports import PowerSource, StatusSource
from .rapl import find_rapl

Found = tuple[PowerSource | None, StatusSource | None] | str
"""A sensor, a device's status, both, or in words why not."""


class HostScan:
    """Finds sensors that were not found before. ``root`` is where ``sys``, ``proc`` and ``dev`` are.

    ``estimate`` takes a model of the CPU where no counter of it may be read.
    """

    def __init__(
        self, clock: Clock, *, root: Path = Path("/"), estimate: bool = False, amd: AmdProcess | None = None
    ) -> None:
        self._clock = clock
        self._root = root
        self._estimate = estimate
        self._amd = amd or AmdProcess(clock)
        self._amd.join()
        self._known: set[str] = set()
        self._health: dict[str, bool] = {}

    def scan(self) -> Detection:
        """What is new, with the reasons why other things are still missing. Never fails; may take seconds."""
        sources: list[PowerSource] = []
        statuses: list[StatusSource] = []
        reasons: list[str] = []
        for find in (self._nvidia, self._amds, self._cpus):
            for one in find():
                if isinstance(one, str):
                    reasons.append(one)
                else:
                    source, status = one
                    sources += [] if source is None else [source]
                    statuses += [] if status is None else [status]
        return Detection(tuple(sources), (*(describe(source) for source in sources), *reasons), tuple(statuses))

    def health(self) -> tuple[CollectorHealth, ...]:
        """Which driver libraries answered at the last scan; those that this machine lacks are left out."""
        restarts = {"amdsmi": self._amd.restarts}
        return tuple(CollectorHealth(name, up, restarts.get(name)) for name, up in self._health.items())

    def close(self) -> None:
        """Let go of what sources do not hold themselves."""
        self._amd.leave()

    def _nvidia(self) -> Iterator[Found]:
        try:
            present = list_gpus()
        except SensorUnavailableError as error:
            if "nvml" in self._health or not library_missing(error):
                self._health["nvml"] = False
            yield str(error)
            return
        self._health["nvml"] = True
        for gpu in present:
            yield from self._nvidia_source(gpu.uuid)
            if self._is_new(f"status of {gpu.uuid}"):
                with suppress(SensorUnavailableError):  # the source has said why
                    yield None, NvmlStatus(self._clock, gpu.uuid)

    def _nvidia_source(self, uuid: str) -> Iterator[Found]:
        if uuid in self._known:
            return
        try:
            source = NvmlSource(self._clock, uuid)
        except SensorUnavailableError as error:
            yield str(error)
            return
        self._known.add(uuid)
        if source.group is not None and not self._is_new(source.group):
            source.close()
            yield f"{uuid} shares the sensor of another GPU of {source.group} and is in it."
            return
        yield source, None

    def _amds(self) -> Iterator[Found]:
        if "amdsmi" not in self._health and not amd_driver_loaded(self._root):
            return
        try:
            present = list_amd(self._amd)
        except SensorUnavailableError as error:
            self._health["amdsmi"] = False
            yield str(error)
            return
        self._health["amdsmi"] = True
        for gpu in present:
            if gpu.info.device not in self._known:
                yield from self._amd_gpu(gpu)

    def _amd_gpu(self, gpu: AmdGpu) -> Iterator[Found]:
        try:
            source = AmdSource(self._clock, self._amd, gpu)
        except SensorUnavailableError as error:
            yield str(error)
            return
        self._known.add(gpu.info.device)
        yield source, AmdStatus(self._amd, gpu)

    def _cpus(self) -> Iterator[Found]:
        try:
            found = find_rapl(self._clock, self._root / "sys/class/powercap")
        except SensorUnavailableError as error:
            yield str(error)
            yield from self._estimated()
            return
        self._health["rapl"] = True
        for source in found:
            if self._is_new(f"{source.sensor.device} {source.sensor.scope}"):
                yield source, None

    def _estimated(self) -> Iterator[Found]:
        if not self._estimate or "estimate" in self._known or "rapl" in self._health:
            return
        try:
            source = EstimatedCpuSource(self._clock, root=self._root)
        except SensorUnavailableError as error:
            yield str(error)
            return
        self._known.add("estimate")
        yield source.note
        yield source, None

    def _is_new(self, name: str) -> bool:
        new = name not in self._known
        self._known.add(name)
        return new
