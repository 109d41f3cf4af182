"""AMD GPUs as sensors and devices. One source is one physical GPU, however it is partitioned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energyopt.core.clock import Clock
from energyopt.core.errors import SensorError, SensorUnavailableError
from energyopt.core.results import Scope, Source
from energyopt.core.units import Hertz, Joules, Seconds, Watts

from ..ports import Sample, SensorId
from ..status import Celsius, DeviceInfo, DeviceStatus, Ratio, Throttle
from .process import AmdProcess

RELATIVE_ERROR = 0.0
"""AMD documents no accuracy. The library's resolution constant of 15.3 instead of 2^-16 J adds 0.27%."""


@dataclass(frozen=True, slots=True)
class AmdGpu:
    """A physical GPU as the library lists it.

    ``hips`` are its numbers in HIP's order and ``addresses`` those on the PCI bus, one a partition.
    """

    info: DeviceInfo
    hips: tuple[int, ...]
    max_power: Watts | None
    addresses: tuple[str, ...] = ()


def amd_driver_loaded(root: Path = Path("/")) -> bool:
    """True if the kernel has the amdgpu driver: else no process need be started to look for GPUs."""
    return any((root / path).exists() for path in ("sys/module/amdgpu", "dev/kfd"))


def list_amd(process: AmdProcess) -> tuple[AmdGpu, ...]:
    """The physical GPUs. Raises SensorUnavailableError."""
    try:
        found = process.call("devices")
        return tuple(_gpu(one) for one in found)
    except (SensorError, KeyError, TypeError, ValueError) as error:
        raise SensorUnavailableError(f"AMD GPUs cannot be listed: {error}") from error


class AmdSource:
    """Energy and power of one socket: COUNTER where the library counts energy, else INTEGRATED.

    A guest of a hypervisor has no counter; the second die of an MI250 tells nothing, since the first one's numbers
    are of both. Raises SensorUnavailableError then. ``process`` is shared; its last user's ``close`` ends it.
    """

    def __init__(self, clock: Clock, process: AmdProcess, gpu: AmdGpu) -> None:
        self._process = process
        self._device = gpu.info.device
        self.sensor = SensorId(self._device, Scope.SOCKET)
        self.max_power = gpu.max_power
        self.relative_error = RELATIVE_ERROR
        self.source = Source.COUNTER
        try:
            sample = self.read()
        except SensorError as error:
            raise SensorUnavailableError(f"{self._device} cannot be read: {error}") from error
        self.source = Source.COUNTER if sample.counter is not None else Source.INTEGRATED
        self._open = True
        process.join()

    def read(self) -> Sample:
        """Energy and power now, stamped with the middle of the driver's answer."""
        try:
            told, at = self._process.timed("sample", device=self._device)
        except SensorUnavailableError as error:
            raise SensorError(str(error)) from error
        counter = told["counter"] if self.source is Source.COUNTER else None
        power = told["power"]
        if counter is None and power is None:
            raise SensorError(f"{self._device} told neither energy nor power (a second die, or a virtual GPU).")
        return Sample(
            at=at,
            counter=None if counter is None else Joules(counter),
            power=None if power is None else Watts(power),
            kind=told["kind"],
        )

    def close(self) -> None:
        if self._open:
            self._open = False
            self._process.leave()


class AmdStatus:
    """Looks at one GPU. ``process`` is shared; its last user's ``close`` ends it."""

    def __init__(self, process: AmdProcess, gpu: AmdGpu) -> None:
        self._process = process
        self.info = gpu.info
        self._open = True
        process.join()

    def read(self) -> DeviceStatus:
        try:
            told, at = self._process.timed("status", device=self.info.device)
        except SensorUnavailableError as error:
            raise SensorError(str(error)) from error
        return _status(told, at)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._process.leave()


def _gpu(told: Mapping[str, Any]) -> AmdGpu:
    info = DeviceInfo(
        device=str(told["device"]),
        vendor="amd",
        model=str(told["model"]),
        index=int(told["index"]),
        pci=told["pci"],
        driver=told["driver"],
        partitions=told["partitions"],
    )
    hips, most = tuple(int(number) for number in told["hips"]), told["max_power"]
    return AmdGpu(info, hips, None if most is None else Watts(most), tuple(map(str, told["addresses"])))


def _status(told: Mapping[str, Any], at: Seconds) -> DeviceStatus:
    throttled = told["throttled"]
    return DeviceStatus(
        at=at,
        power={(Scope.SOCKET, kind): Watts(watts) for kind, watts in told["power"].items()},
        limits={kind: Watts(watts) for kind, watts in told["limits"].items()},
        clocks={domain: Hertz(value) for domain, value in told["clocks"].items()},
        clock_bounds={
            (domain, bound): Hertz(value)
            for domain, range_ in told["clock_bounds"].items()
            for bound, value in range_.items()
        },
        temperature={sensor: Celsius(value) for sensor, value in told["temperature"].items()},
        utilization={unit: Ratio(value) for unit, value in told["utilization"].items()},
        throttled=None if throttled is None else frozenset(Throttle(reason) for reason in throttled),
        throttle_time={Throttle(reason): Seconds(value) for reason, value in told["throttle_time"].items()},
    )
