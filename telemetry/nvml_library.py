"""NVIDIA's management library (``nvidia-ml-py``): opening it, finding a GPU, reading one field, naming errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref
from threading import Lock
from typing import Any, TypeVar

import pynvml

from energyopt.core.errors import SensorError, SensorUnavailableError

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
_init = Lock()


def open_nvml() -> None:
    """Load the library and count one user. Raises SensorUnavailableError without library, driver or permission."""
    try:
        with _init:
            pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise SensorUnavailableError(f"NVIDIA GPUs cannot be read: {describe_error(error)}.") from error


def library_missing(error: Exception) -> bool:
    """True if an error of ``open_nvml`` means that this machine has no NVIDIA driver at all."""
    cause = error.__cause__
    return isinstance(cause, pynvml.NVMLError) and cause.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND


def close_nvml() -> None:
    """Take one user away; never fails."""
    try:
        with _init:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return  # the driver went away first: nothing is left to release


def physical_handle(device: str) -> Handle:
    """The handle of a GPU by UUID, of the parent for a MIG instance. Raises NVMLError."""
    handle = pynvml.nvmlDeviceGetHandleByUUID(device)
    return pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if device.startswith("MIG-") else handle


def field_value(handle: Handle, field: int, scope: int = 0) -> int:
    """One integer field of the driver. Raises NVMLError with the field's own code."""
    value = pynvml.nvmlDeviceGetFieldValues(handle, [(field, scope)])[0]
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(value.nvmlReturn)
    return field_number(value)


class FieldReader:
    """Several fields of one GPU in one driver call, into memory that is kept: this is what samples ten times a second.

    ``fields`` are pairs of field and scope. Not for two threads at once.
    """

    def __init__(self, fields: Sequence[tuple[int, int]]) -> None:
        self._values = (pynvml.c_nvmlFieldValue_t * len(fields))()
        for value, (field, scope) in zip(self._values, fields, strict=True):
            value.fieldId, value.scopeId = field, scope
        self._cells = tuple((value, value.value) for value in self._values)
        self._at = byref(self._values)

    def read(self, handle: Handle) -> list[int | None]:
        """The integers, None where a field fails alone. Raises NVMLError if the device is gone or the call fails."""
        code = pynvml.nvmlLib.nvmlDeviceGetFieldValues(handle, len(self._cells), self._at)
        if code != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(code)
        return [_number(field, union) for field, union in self._cells]


def _number(field: Any, union: Any) -> int | None:
    code = field.nvmlReturn
    if code == pynvml.NVML_SUCCESS:
        number: int = getattr(union, _MEMBERS.get(field.valueType, "uiVal"))
        return number
    if code in LOST:
        raise pynvml.NVMLError(code)
    return None


def field_number(value: Any) -> int:
    """The integer in a field that the driver filled; the type says which member of the union it used."""
    member = _MEMBERS.get(value.valueType, "uiVal")
    return int(getattr(value.value, member))


_MEMBERS = {
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
}


def optional(read: Callable[[], T]) -> T | None:
    """A value, or None if this field fails alone. Raises NVMLError if the device is gone."""
    try:
        return read()
    except pynvml.NVMLError as error:
        if error.value in LOST:
            raise
        return None


def text(value: str | bytes) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


def describe_error(error: pynvml.NVMLError) -> str:
    """The library's words for a code, with the code; it has none before it is loaded."""
    if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return "libnvidia-ml.so.1 is not installed (no NVIDIA driver)"
    return f"{error} (NVML code {error.value})"


class NvmlSession:
    """One user's handle of one GPU, opened at need. After an error it is dropped, so that the next use begins anew.

    The library itself starts afresh only when its last user has let go: a container's "Unknown Error" after a daemon
    reload ends once every session has failed and dropped its handle.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._handle: Handle | None = None
        self._open = False

    @contextmanager
    def use(self) -> Iterator[Handle]:
        """The handle. An error of the library inside the block becomes SensorError and ends the session."""
        try:
            yield self.connect()
        except (pynvml.NVMLError, SensorUnavailableError) as error:
            raise self.lost(error) from error

    def lost(self, error: pynvml.NVMLError | SensorUnavailableError) -> SensorError:
        """End the session after an error; returns that error in our words."""
        self.close()
        words = describe_error(error) if isinstance(error, pynvml.NVMLError) else str(error).rstrip(".")
        return SensorError(f"{self._device} could not be read: {words}.")

    def connect(self) -> Handle:
        """The handle, opened if it is not. Raises SensorUnavailableError, NVMLError."""
        if self._handle is None:
            open_nvml()
            self._open = True
            self._handle = physical_handle(self._device)
        return self._handle

    def close(self) -> None:
        """Let go of the handle and of the library; idempotent."""
        self._handle = None
        if self._open:
            self._open = False
            close_nvml()
