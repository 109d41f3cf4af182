"""What an NVIDIA GPU says beside its energy: powers by scope, limits, clocks, throttling, temperature, utilisation.

One GPU is one source; of a MIG instance its parent is looked at. Every fact fails on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pynvml

from energyopt.core.clock import Clock
from energyopt.core.errors import SensorError, SensorUnavailableError
from energyopt.core.results import Scope
from energyopt.core.units import Hertz, Seconds, Watts, hertz_from_megahertz, watts_from_milliwatts

from .nvml import list_instances, module_group
from .nvml_library import LOST, Handle, NvmlSession, field_number, optional, text
from .status import (
    Celsius,
    ClockDomain,
    DeviceInfo,
    DeviceStatus,
    LimitKind,
    PowerKind,
    Ratio,
    Thermometer,
    Throttle,
    Unit,
)

AVERAGE, INSTANT = pynvml.NVML_FI_DEV_POWER_AVERAGE, pynvml.NVML_FI_DEV_POWER_INSTANT
POWERS: dict[tuple[int, int], tuple[Scope, PowerKind]] = {
    (INSTANT, pynvml.NVML_POWER_SCOPE_GPU): (Scope.GPU, "instant"),
    (AVERAGE, pynvml.NVML_POWER_SCOPE_GPU): (Scope.GPU, "average"),
    (INSTANT, pynvml.NVML_POWER_SCOPE_MODULE): (Scope.MODULE, "instant"),
    (AVERAGE, pynvml.NVML_POWER_SCOPE_MODULE): (Scope.MODULE, "average"),
    (AVERAGE, pynvml.NVML_POWER_SCOPE_MEMORY): (Scope.MEMORY, "average"),
}
"""A scope that a board does not meter fails or reads 0; both mean unknown."""
THROTTLE_TIMES = {
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP: Throttle.POWER_CAP,
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST: Throttle.SYNC_BOOST,
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN: Throttle.THERMAL_SW,
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN: Throttle.THERMAL_HW,
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN: Throttle.POWER_BRAKE,
}
"""Cumulative nanoseconds since the driver was loaded."""
REASONS = {
    pynvml.nvmlClocksEventReasonSwPowerCap: Throttle.POWER_CAP,
    pynvml.nvmlClocksEventReasonHwSlowdown: Throttle.HW_SLOWDOWN,
    pynvml.nvmlClocksEventReasonSyncBoost: Throttle.SYNC_BOOST,
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: Throttle.THERMAL_SW,
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: Throttle.THERMAL_HW,
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: Throttle.POWER_BRAKE,
}
"""Idle, chosen clocks and display settings are in the driver's mask too; they hold nothing back."""
MEMORY_TEMPERATURE = pynvml.NVML_FI_DEV_MEMORY_TEMP
FIELDS: tuple[tuple[int, int], ...] = (*POWERS, *((field, 0) for field in THROTTLE_TIMES), (MEMORY_TEMPERATURE, 0))
MAX_CELSIUS = 200
"""Above this a reading is a sentinel, not a temperature."""


class NvmlStatus:
    """Looks at one GPU. Raises SensorUnavailableError if it is not there."""

    def __init__(self, clock: Clock, device: str) -> None:
        self._clock = clock
        self._device = device
        self._session = NvmlSession(device)
        try:
            with self._session.use() as handle:
                self.info = _describe(handle)
        except SensorError as error:
            raise SensorUnavailableError(str(error)) from error

    def read(self) -> DeviceStatus:
        """Look now; the time is that of the first driver call."""
        before = self._clock.now()
        with self._session.use() as handle:
            fields = _fields(handle)
            status = DeviceStatus(
                at=before,
                power={POWERS[key]: watts_from_milliwatts(fields[key]) for key in POWERS if fields.get(key)},
                limits=dict(_limits(handle)),
                clocks=dict(_clocks(handle)),
                temperature=dict(_temperatures(handle, fields)),
                utilization=dict(_utilization(handle)),
                throttled=_throttled(handle),
                throttle_time={
                    reason: Seconds(fields[field, 0] / 1e9)
                    for field, reason in THROTTLE_TIMES.items()
                    if (field, 0) in fields
                },
            )
        if not any((status.power, status.limits, status.clocks, status.temperature, status.utilization)):
            raise SensorError(f"{self._device} told nothing about itself.")
        return status

    def close(self) -> None:
        self._session.close()


def _describe(handle: Handle) -> DeviceInfo:
    instances = list_instances(handle)
    driver = optional(pynvml.nvmlSystemGetDriverVersion)
    pci = optional(lambda: pynvml.nvmlDeviceGetPciInfo(handle))
    return DeviceInfo(
        device=text(pynvml.nvmlDeviceGetUUID(handle)),
        vendor="nvidia",
        model=text(optional(lambda: pynvml.nvmlDeviceGetName(handle)) or "unknown"),
        index=pynvml.nvmlDeviceGetIndex(handle),
        pci=None if pci is None else text(pci.busId),
        driver=None if driver is None else text(driver),
        partitions=None if instances is None else len(instances),
        group=module_group(handle),
    )


def _fields(handle: Handle) -> dict[tuple[int, int], int]:
    """All fields in one call; those that the driver could not tell are absent. Raises NVMLError if the GPU is lost."""
    values: Any = optional(lambda: pynvml.nvmlDeviceGetFieldValues(handle, list(FIELDS)))
    found = {}
    for key, value in zip(FIELDS, values if values is not None else (), strict=False):
        if value.nvmlReturn in LOST:
            raise pynvml.NVMLError(value.nvmlReturn)
        if value.nvmlReturn == pynvml.NVML_SUCCESS:
            found[key] = field_number(value)
    return found


def _limits(handle: Handle) -> Iterator[tuple[LimitKind, Watts]]:
    single: tuple[tuple[LimitKind, Callable[[Handle], int]], ...] = (
        ("requested", pynvml.nvmlDeviceGetPowerManagementLimit),
        ("enforced", pynvml.nvmlDeviceGetEnforcedPowerLimit),
        ("default", pynvml.nvmlDeviceGetPowerManagementDefaultLimit),
    )
    for kind, read in single:
        value = optional(partial(read, handle))
        if value:
            yield kind, watts_from_milliwatts(value)
    bounds = optional(lambda: pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle))
    if bounds is not None:
        yield "min", watts_from_milliwatts(bounds[0])
        yield "max", watts_from_milliwatts(bounds[1])


def _clocks(handle: Handle) -> Iterator[tuple[ClockDomain, Hertz]]:
    domains: tuple[tuple[ClockDomain, int], ...] = (
        ("sm", pynvml.NVML_CLOCK_SM),
        ("memory", pynvml.NVML_CLOCK_MEM),
    )
    for domain, number in domains:
        value = optional(partial(pynvml.nvmlDeviceGetClockInfo, handle, number))
        if value is not None:
            yield domain, hertz_from_megahertz(value)


def _temperatures(handle: Handle, fields: dict[tuple[int, int], int]) -> Iterator[tuple[Thermometer, Celsius]]:
    """The chip's, by the newer call or the older one, and the memory's where a board has that sensor (never 0)."""
    calls = (pynvml.nvmlDeviceGetTemperatureV, pynvml.nvmlDeviceGetTemperature)
    reads = (optional(partial(call, handle, pynvml.NVML_TEMPERATURE_GPU)) for call in calls)
    chip = next((value for value in reads if value is not None), None)
    found: tuple[tuple[Thermometer, int | None], ...] = (("gpu", chip), ("memory", fields.get((MEMORY_TEMPERATURE, 0))))
    for sensor, value in found:
        if value and value < MAX_CELSIUS:
            yield sensor, Celsius(float(value))


def _utilization(handle: Handle) -> Iterator[tuple[Unit, Ratio]]:
    rates = optional(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
    if rates is not None:
        yield "compute", Ratio(rates.gpu / 100)
        yield "memory", Ratio(rates.memory / 100)


def _throttled(handle: Handle) -> frozenset[Throttle] | None:
    calls = (pynvml.nvmlDeviceGetCurrentClocksEventReasons, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons)
    reads = (optional(partial(call, handle)) for call in calls)
    mask = next((value for value in reads if value is not None), None)
    return None if mask is None else frozenset(reason for bit, reason in REASONS.items() if mask & bit)
