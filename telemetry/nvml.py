"""NVIDIA GPUs through the driver's management library (``nvidia-ml-py``).

One source is one physical GPU, found by UUID; a MIG instance has no sensor of its own, so its parent is read.
Each field fails on its own; a lost driver is opened again at the next reading.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Literal, TypeVar

import pynvml

from energyopt.core.clock import Clock
from energyopt.core.errors import SensorError, SensorUnavailableError
from energyopt.core.results import Scope, Source
from energyopt.core.units import Joules, Seconds, Watts, joules_from_millijoules, watts_from_milliwatts

from .ports import Sample, SensorId
from .visible import GpuIdentity

Handle = Any
"""An opaque pointer of the library."""
T = TypeVar("T")

LOST = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_RESET_REQUIRED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        pynvml.NVML_ERROR_UNKNOWN,
    }
)
"""Codes after which a handle is worth nothing; containers see UNKNOWN after a daemon reload."""
RELATIVE_ERROR = 0.05
"""The only accuracy NVIDIA's documentation of nvmlDeviceGetPowerUsage states (of older boards): +/- 5%."""
FIRST_AVERAGING = pynvml.NVML_DEVICE_ARCH_AMPERE
"""From this architecture on nvmlDeviceGetPowerUsage is a mean over a second, but for the GA100 chip."""
GA100_BOARDS = ("A100", "A30", "A800")
_init = Lock()


def open_nvml() -> None:
    """Load the library and count one user. Raises SensorUnavailableError without library, driver or permission."""
    try:
        with _init:
            pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise SensorUnavailableError(f"NVIDIA GPUs cannot be read: {describe_error(error)}.") from error


def close_nvml() -> None:
    """Take one user away; never fails."""
    try:
        with _init:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return  # the driver went away first: nothing is left to release


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


def physical_handle(device: str) -> Handle:
    """The handle of a GPU by UUID, of the parent for a MIG instance. Raises NVMLError."""
    handle = pynvml.nvmlDeviceGetHandleByUUID(device)
    return pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if device.startswith("MIG-") else handle


class NvmlSource:
    """Energy and power of one GPU.

    COUNTER where the driver counts energy, INTEGRATED where it only tells power. On boards where GPU and CPU share a
    module and the driver meters the module, the scope is MODULE. Raises SensorUnavailableError if the GPU is not
    there or tells neither.
    """

    def __init__(self, clock: Clock, device: str) -> None:
        self._clock = clock
        self._device = device
        self._handle: Handle | None = None
        self._open = False
        self.relative_error = RELATIVE_ERROR
        try:
            handle = self._connect()
            counts = self._energy(handle) is not None
            if not counts and self._power(handle)[0] is None:
                raise SensorUnavailableError(f"{device} tells neither energy nor power (virtual or old GPU).")
            module = _meters_module(handle)
            self.sensor = SensorId(_text(pynvml.nvmlDeviceGetUUID(handle)), Scope.MODULE if module else Scope.GPU)
            self.max_power = None if module else _max_power(handle)
            self.source = Source.COUNTER if counts else Source.INTEGRATED
        except (pynvml.NVMLError, SensorError) as error:
            self.close()
            words = describe_error(error) if isinstance(error, pynvml.NVMLError) else str(error)
            raise SensorUnavailableError(f"{device} cannot be read: {words}.") from error
        except SensorUnavailableError:
            self.close()
            raise

    def read(self) -> Sample:
        """Energy and power now, stamped with the middle of the driver calls."""
        before = self._clock.now()
        try:
            handle = self._handle if self._handle is not None else self._connect()
            counter = self._energy(handle) if self.source is Source.COUNTER else None
            power, kind = self._power(handle)
        except (pynvml.NVMLError, SensorUnavailableError) as error:
            self._forget()
            words = describe_error(error) if isinstance(error, pynvml.NVMLError) else str(error)
            raise SensorError(f"{self._device} could not be read: {words}.") from error
        if counter is None and power is None:
            raise SensorError(f"{self._device} told neither energy nor power.")
        at = Seconds((before + self._clock.now()) / 2)
        return Sample(at=at, counter=counter, power=power, kind=kind)

    def close(self) -> None:
        self._forget()

    def _connect(self) -> Handle:
        open_nvml()
        self._open = True
        self._handle = physical_handle(self._device)
        return self._handle

    def _forget(self) -> None:
        """Drop the handle and this source's use of the library, so that the next reading begins anew."""
        self._handle = None
        if self._open:
            self._open = False
            close_nvml()

    def _energy(self, handle: Handle) -> Joules | None:
        value = _field(lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        return None if value is None else joules_from_millijoules(value)

    def _power(self, handle: Handle) -> tuple[Watts | None, Literal["instant", "average"] | None]:
        """The power of the moment; where only the older call is known, what that one means on this chip."""
        scope = pynvml.NVML_POWER_SCOPE_GPU
        if getattr(self, "sensor", None) is not None and self.sensor.scope is Scope.MODULE:
            scope = pynvml.NVML_POWER_SCOPE_MODULE
        value = _field(lambda: field_value(handle, pynvml.NVML_FI_DEV_POWER_INSTANT, scope))
        if value is not None:
            return watts_from_milliwatts(value), "instant"
        value = _field(lambda: pynvml.nvmlDeviceGetPowerUsage(handle))
        if value is None:
            return None, None
        return watts_from_milliwatts(value), "average" if _averages(handle) else "instant"


def field_value(handle: Handle, field: int, scope: int = 0) -> int:
    """One integer field of the driver. Raises NVMLError with the field's own code."""
    value = pynvml.nvmlDeviceGetFieldValues(handle, [(field, scope)])[0]
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(value.nvmlReturn)
    wide = value.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
    return int(value.value.ullVal if wide else value.value.uiVal)


def _field(read: Callable[[], T]) -> T | None:
    """A value, or None if this field fails alone. Raises NVMLError if the device is gone."""
    try:
        return read()
    except pynvml.NVMLError as error:
        if error.value in LOST:
            raise
        return None


def _identity(index: int) -> GpuIdentity | None:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        pci = _text(pynvml.nvmlDeviceGetPciInfo(handle).busId)
        return GpuIdentity(_text(pynvml.nvmlDeviceGetUUID(handle)), _text(pynvml.nvmlDeviceGetName(handle)), pci)
    except pynvml.NVMLError:
        return None


def _max_power(handle: Handle) -> Watts | None:
    limits: Sequence[int] | None = _field(lambda: pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle))
    return None if limits is None else watts_from_milliwatts(limits[1])


def _meters_module(handle: Handle) -> bool:
    """True on superchips whose counter covers the CPU too: linked chip to chip, and power known for the module."""
    info = _field(lambda: pynvml.nvmlDeviceGetC2cModeInfoV1(handle))
    if info is None or not info.isC2cEnabled:
        return False
    field, scope = pynvml.NVML_FI_DEV_POWER_INSTANT, pynvml.NVML_POWER_SCOPE_MODULE
    return bool(_field(lambda: field_value(handle, field, scope)))


def _averages(handle: Handle) -> bool:
    chip = _field(lambda: pynvml.nvmlDeviceGetArchitecture(handle))
    name = _text(_field(lambda: pynvml.nvmlDeviceGetName(handle)) or "")
    return chip is not None and chip >= FIRST_AVERAGING and not any(board in name for board in GA100_BOARDS)


def _text(value: str | bytes) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


def describe_error(error: pynvml.NVMLError) -> str:
    """The library's words for a code, with the code; it has none before it is loaded."""
    if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return "libnvidia-ml.so.1 is not installed (no NVIDIA driver)"
    return f"{error} (NVML code {error.value})"
