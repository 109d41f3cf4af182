"""The ``amdsmi`` package behind plain values in base units. Imported in the child process only.

GPUs are grouped by PCI address: of the compute partitions of one GPU only the first is asked, since the others repeat
its power or say 0. Every fact fails on its own.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable
from typing import Any

from . import values
from .throttle import Residency

INSTALL = "install the amdsmi that belongs to the installed ROCm, such as `pip install 'amdsmi<=ROCM_VERSION'`"
NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, UNEXPECTED_DATA = 2, 10, 34, 43
HINTS = {
    NO_PERMISSION: "add the user to the groups video and render",
    DRIVER_NOT_LOADED: "the amdgpu driver is not loaded",
    UNEXPECTED_DATA: "the ROCm library is older than the GPU",
}
GONE = frozenset({32, 31, DRIVER_NOT_LOADED})
"""Not initialised, device not found, driver not loaded: every further call would say the same."""


class LibraryError(Exception):
    """In words; ``code`` is the library's, where it gave one."""

    def __init__(self, words: str, code: int | None = None) -> None:
        super().__init__(words)
        self.code = code


class Library:
    """Opened ``amdsmi``. Raises LibraryError, which says what to do, where it cannot be."""

    def __init__(self) -> None:
        self.smi = _load()
        self._residency: dict[str, Residency] = {}
        self._call(self.smi.amdsmi_init)
        self.handles: dict[str, Any] = {}
        self._devices = self._find()

    def devices(self) -> list[dict[str, Any]]:
        """What stays the same of every physical GPU."""
        return self._devices

    def sample(self, device: str) -> dict[str, Any]:
        """Joules counted since the driver was loaded, watts and their kind; None for what is not known."""
        handle = self.handle(device)
        count = self.optional(self.smi.amdsmi_get_energy_count, handle)
        info = self.optional(self.smi.amdsmi_get_power_info, handle)
        watts, kind = values.power(info or {})
        return {"counter": values.energy(count or {}), "power": watts, "kind": kind}

    def status(self, device: str) -> dict[str, Any]:
        """Everything else; what is not known is absent."""
        handle, smi = self.handle(device), self.smi
        watts, kind = values.power(self.optional(smi.amdsmi_get_power_info, handle) or {})
        activity = self.optional(smi.amdsmi_get_gpu_activity, handle) or {}
        clocks, bounds = self._clocks(handle)
        residency = self._residency.setdefault(device, Residency())
        metrics = self.optional(smi.amdsmi_get_gpu_metrics_info, handle) or {}
        throttled, throttle_time = residency.update(metrics, time.monotonic())
        units = {"compute": activity.get("gfx_activity"), "memory": activity.get("umc_activity")}
        return {
            "power": {} if kind is None else {kind: watts},
            "limits": values.caps(self.optional(smi.amdsmi_get_power_cap_info, handle) or {}),
            "clocks": clocks,
            "clock_bounds": bounds,
            "temperature": self._temperatures(handle),
            "utilization": _known({name: values.share(value) for name, value in units.items()}),
            "throttled": throttled,
            "throttle_time": throttle_time,
        }

    def handle(self, device: str) -> Any:
        """The handle that answers for a GPU. Raises LibraryError for one that is not here."""
        if device not in self.handles:
            raise LibraryError(f"{device} is not among the AMD GPUs of this machine")
        return self.handles[device]

    def optional(self, read: Callable[..., Any], *arguments: Any) -> Any:
        """What a call returns, or None where it fails alone. Raises LibraryError if nothing will answer any more."""
        try:
            return self._call(read, *arguments)
        except LibraryError as error:
            if error.code in GONE:
                raise
            return None

    def perform(self, act: Callable[..., Any], *arguments: Any) -> Any:
        """What a call returns. Raises LibraryError where it fails."""
        return self._call(act, *arguments)

    def _call(self, read: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return read(*arguments)
        except self.smi.AmdSmiLibraryException as error:
            code = error.get_error_code()
            hint = f" ({HINTS[code]})" if code in HINTS else ""
            raise LibraryError(f"{error.get_error_info(detailed=True)}, code {code}{hint}", code) from error
        except (self.smi.AmdSmiException, UnboundLocalError, AttributeError, ValueError) as error:
            # the binding's own faults: a wrong type, a name that it does not know, bytes that are no number
            raise LibraryError(f"amdsmi failed: {type(error).__name__}: {error}") from error

    def _find(self) -> list[dict[str, Any]]:
        groups: dict[str, list[tuple[str, Any]]] = {}
        for handle in self._call(self.smi.amdsmi_get_processor_handles):
            bdf = self.optional(self.smi.amdsmi_get_gpu_device_bdf, handle)
            if bdf is not None:
                groups.setdefault(values.physical(bdf), []).append((bdf, handle))
        return [self._describe(index, sorted(groups[key], key=_by_bdf)) for index, key in enumerate(sorted(groups))]

    def _describe(self, index: int, partitions: list[tuple[str, Any]]) -> dict[str, Any]:
        bdf, handle = partitions[0]
        smi = self.smi
        asic = self.optional(smi.amdsmi_get_gpu_asic_info, handle) or {}
        driver = self.optional(smi.amdsmi_get_gpu_driver_info, handle) or {}
        limits = values.caps(self.optional(smi.amdsmi_get_power_cap_info, handle) or {})
        device = values.identity(bdf, asic.get("asic_serial"))
        self.handles[device] = handle
        return {
            "device": device,
            "model": str(asic.get("market_name", "unknown")),
            "index": index,
            "hips": self._hip_numbers(part for _, part in partitions),
            "pci": bdf,
            "addresses": [address for address, _ in partitions],
            "driver": driver.get("driver_version"),
            "partitions": len(partitions) if len(partitions) > 1 else None,
            "max_power": limits.get("max"),
        }

    def _hip_numbers(self, handles: Iterable[Any]) -> list[float]:
        """HIP's numbers of a GPU: one for each partition that says its own."""
        read = self.smi.amdsmi_get_gpu_enumeration_info
        told = (values.number((self.optional(read, handle) or {}).get("hip_id")) for handle in handles)
        return [number for number in told if number is not None]

    def _clocks(self, handle: Any) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
        clocks: dict[str, float] = {}
        bounds: dict[str, dict[str, float]] = {}
        for name, kind in (("sm", self.smi.AmdSmiClkType.GFX), ("memory", self.smi.AmdSmiClkType.MEM)):
            info = self.optional(self.smi.amdsmi_get_clock_info, handle, kind) or {}
            now = values.hertz(info.get("clk"))
            if now is not None:
                clocks[name] = now
            range_ = {"min": values.hertz(info.get("min_clk")), "max": values.hertz(info.get("max_clk"))}
            bounds[name] = _known(range_)
        return clocks, bounds

    def _temperatures(self, handle: Any) -> dict[str, float]:
        kinds, now = self.smi.AmdSmiTemperatureType, self.smi.AmdSmiTemperatureMetric.CURRENT
        sensors = {"gpu": kinds.EDGE, "hotspot": kinds.HOTSPOT, "memory": kinds.VRAM}
        read = self.smi.amdsmi_get_temp_metric
        found = {name: values.celsius(self.optional(read, handle, kind, now)) for name, kind in sensors.items()}
        return _known(found)


def _load() -> Any:
    try:
        return importlib.import_module("amdsmi")
    except ModuleNotFoundError as error:
        raise LibraryError(f"the package amdsmi is not installed: {INSTALL}") from error
    except AttributeError as error:  # the binding looks up every symbol at import
        raise LibraryError(f"the amdsmi package is newer than this ROCm ({error}): {INSTALL}") from error
    except (KeyError, OSError, ImportError) as error:  # KeyError: it found no library, printed so and went on
        raise LibraryError("libamd_smi.so cannot be loaded: install ROCm's amd-smi-lib, or set ROCM_PATH") from error


def _by_bdf(partition: tuple[str, Any]) -> str:
    return partition[0]


def _known(found: dict[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in found.items() if value is not None}
