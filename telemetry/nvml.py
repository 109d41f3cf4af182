"""NVIDIA GPUs through the driver's management library (``nvidia-ml-py``).

One source is one physical GPU, found by UUID; a MIG instance has no sensor of its own, so its parent is read.
Each field fails on its own; a lost driver is opened again at the next reading.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_uint
from functools import partial
from typing import Literal

import pynvml

from energyopt.core.clock import Clock
from energyopt.core.errors import SensorError, SensorUnavailableError
from energyopt.core.results import Scope, Source
from energyopt.core.units import Joules, Seconds, Watts, joules_from_millijoules, watts_from_milliwatts

from .nvml_library import (
    FieldReader,
    Handle,
    NvmlSession,
    close_nvml,
    describe_error,
    field_value,
    open_nvml,
    optional,
    physical_handle,
    text,
)
from .ports import Sample, SensorId
from .visible import GpuIdentity

__all__ = ["Handle", "NvmlSource", "close_nvml", "describe_error", "list_gpus", "open_nvml", "physical_handle"]

RELATIVE_ERROR = 0.05
"""The only accuracy NVIDIA's documentation of nvmlDeviceGetPowerUsage states (of older boards): +/- 5%."""
FIRST_AVERAGING = pynvml.NVML_DEVICE_ARCH_AMPERE
"""From this architecture on nvmlDeviceGetPowerUsage is a mean over a second, but for the GA100 chip."""
GA100_BOARDS = ("A100", "A30", "A800")
INSTANT: Literal["instant"] = "instant"
ENERGY_FIELD = pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION
SAME_COUNTER = 2_000
"""Millijoules by which two readings of one counter, an instant apart, may differ: 2 kW for a second at most."""


def list_gpus() -> tuple[GpuIdentity, ...]:
    """The physical GPUs this process may see. Raises SensorUnavailableError; a GPU that fails alone is left out."""
    open_nvml()
    try:
        count = pynvml.nvmlDeviceGetCount()
        found = (_identity(index) for index in range(count))
        return tuple(gpu for gpu in found if gpu is not None)
    except pynvml.NVMLError as error:
        raise SensorUnavailableError(f"NVIDIA GPUs cannot be listed: {describe_error(error)}.") from error
    finally:
        close_nvml()


class NvmlSource:
    """Energy and power of one GPU.

    COUNTER where the driver counts energy, INTEGRATED where it only tells power. On boards where GPU and CPU share a
    module and the driver meters the module, the scope is MODULE. Raises SensorUnavailableError if the GPU is not
    there or tells neither.
    """

    def __init__(self, clock: Clock, device: str) -> None:
        self._clock = clock
        self._device = device
        self._session = NvmlSession(device)
        self.relative_error = RELATIVE_ERROR
        try:
            with self._session.use() as handle:
                self._probe(handle)
        except SensorError as error:
            raise SensorUnavailableError(str(error)) from error

    def _probe(self, handle: Handle) -> None:
        self.source = Source.COUNTER
        module = _meters_module(handle)
        self._scope = pynvml.NVML_POWER_SCOPE_MODULE if module else pynvml.NVML_POWER_SCOPE_GPU
        self._averages = _averages(handle)
        self._fields: FieldReader | None = None
        counts = self._energy(handle) is not None
        if not counts and self._power(handle)[0] is None:
            raise SensorUnavailableError("it tells neither energy nor power (virtual or old GPU).")
        self.sensor = SensorId(text(pynvml.nvmlDeviceGetUUID(handle)), Scope.MODULE if module else Scope.GPU)
        self.group = module_group(handle) if module else None
        self.max_power = None if module else _max_power(handle)
        self.source = Source.COUNTER if counts else Source.INTEGRATED
        if counts and not module and _counts_in_field(handle):
            self._fields = FieldReader(((ENERGY_FIELD, 0), (pynvml.NVML_FI_DEV_POWER_INSTANT, self._scope)))

    def read(self) -> Sample:
        """Energy and power now, stamped with the middle of the driver calls."""
        before = self._clock.now()
        try:  # spelt out: this runs ten times a second for each GPU
            handle = self._session.connect()
            counted, drawn = (None, None) if self._fields is None else self._fields.read(handle)
            counter = self._energy(handle) if counted is None else joules_from_millijoules(counted)
            power, kind = self._power(handle) if drawn is None else (watts_from_milliwatts(drawn), INSTANT)
        except (pynvml.NVMLError, SensorUnavailableError) as error:
            raise self._session.lost(error) from error
        if counter is None and power is None:
            raise SensorError(f"{self._device} told neither energy nor power.")
        at = Seconds((before + self._clock.now()) / 2)
        return Sample(at=at, counter=counter, power=power, kind=kind)

    def close(self) -> None:
        self._session.close()

    def _energy(self, handle: Handle) -> Joules | None:
        if self.source is Source.INTEGRATED:
            return None
        value = optional(lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        return None if value is None else joules_from_millijoules(value)

    def _power(self, handle: Handle) -> tuple[Watts | None, Literal["instant", "average"] | None]:
        """The power of the moment; where only the older call is known, what that one means on this chip."""
        value = optional(lambda: field_value(handle, pynvml.NVML_FI_DEV_POWER_INSTANT, self._scope))
        if value is not None:
            return watts_from_milliwatts(value), INSTANT
        value = optional(lambda: pynvml.nvmlDeviceGetPowerUsage(handle))
        if value is None:
            return None, None
        return watts_from_milliwatts(value), "average" if self._averages else INSTANT


def _counts_in_field(handle: Handle) -> bool:
    """True if the counter may be read as a field beside the power, in one call: it must be the same counter."""
    field = optional(lambda: field_value(handle, ENERGY_FIELD))
    call = optional(lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle))
    return field is not None and call is not None and abs(field - call) <= SAME_COUNTER


def _identity(index: int) -> GpuIdentity | None:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        pci = text(pynvml.nvmlDeviceGetPciInfo(handle).busId)
        name, uuid = text(pynvml.nvmlDeviceGetName(handle)), text(pynvml.nvmlDeviceGetUUID(handle))
        return GpuIdentity(uuid, name, pci, list_instances(handle) or ())
    except pynvml.NVMLError:
        return None


def list_instances(handle: Handle) -> tuple[str, ...] | None:
    """UUIDs of a GPU's MIG instances; None where the GPU is not divided."""
    mode = optional(lambda: pynvml.nvmlDeviceGetMigMode(handle))
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return None
    slots = range(optional(lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0)
    found = (optional(partial(_instance, handle, slot)) for slot in slots)  # slots may be empty in between
    return tuple(uuid for uuid in found if uuid is not None)


def _instance(handle: Handle, slot: int) -> str:
    return text(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)))


def module_group(handle: Handle) -> str | None:
    """What GPUs that share one module have in common; None where the driver numbers no modules."""
    # A number of our own: the binding's default argument is one object shared by all threads.
    number = optional(lambda: pynvml.nvmlDeviceGetModuleId(handle, c_uint()))
    return f"module:{number}" if number else None


def _max_power(handle: Handle) -> Watts | None:
    limits: Sequence[int] | None = optional(lambda: pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle))
    return None if limits is None else watts_from_milliwatts(limits[1])


def _meters_module(handle: Handle) -> bool:
    """True on superchips whose counter covers the CPU too: linked chip to chip, and power known for the module."""
    info = optional(lambda: pynvml.nvmlDeviceGetC2cModeInfoV1(handle))
    if info is None or not info.isC2cEnabled:
        return False
    field, scope = pynvml.NVML_FI_DEV_POWER_INSTANT, pynvml.NVML_POWER_SCOPE_MODULE
    return bool(optional(lambda: field_value(handle, field, scope)))


def _averages(handle: Handle) -> bool:
    chip = optional(lambda: pynvml.nvmlDeviceGetArchitecture(handle))
    name = text(optional(lambda: pynvml.nvmlDeviceGetName(handle)) or "")
    return chip is not None and chip >= FIRST_AVERAGING and not any(board in name for board in GA100_BOARDS)
