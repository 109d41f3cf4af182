"""Limits of NVIDIA GPUs through ``nvidia-ml-py``.

Only the first setter is used: the binding's ``nvmlDeviceSetPowerManagementLimit_v2`` drops the return code and reports
success where the driver refused.

Zeus 0.16 would set the same limit with the same call. It is not used here: it has no getter for the enforced and the
default limit, so a set cannot be read back; it counts devices by index, which a reboot may change; its ``zeusd`` has no
owner, lease or journal, and its non-blocking setters drop failures; and installing it brings ``amdsmi``, pandas and
scikit-learn into the process, the first of which can break ``import torch`` on ROCm.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pynvml

from energyopt.core.errors import ControlError, SensorUnavailableError
from energyopt.core.units import (
    Hertz,
    Watts,
    hertz_from_megahertz,
    joules_from_millijoules,
    megahertz,
    milliwatts,
    watts_from_milliwatts,
)

from ..nvml import Handle, close_nvml, describe_error, open_nvml, physical_handle
from .ports import DeviceLimits, DriverLife

T = TypeVar("T")
CAP_SYS_ADMIN = 1 << 21
STATUS = Path("/proc/self/status")
MODULE = Path("/sys/module/nvidia")
"""The kernel makes a new directory, with a new number, each time the module is loaded."""


class NvmlLimits:
    """The library is opened for each call and closed again: changes are rare, and a driver may come and go.

    Without persistence mode the driver forgets limits when the last user of a GPU leaves; ``hold`` then keeps the
    library open. With it nothing is held open, since that would keep the driver from being unloaded.
    """

    def __init__(self, module: Path = MODULE) -> None:
        self._module = module
        self._held: set[str] = set()

    def limits(self, device: str) -> DeviceLimits:
        with _device(device) as handle:
            low, high = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
            return DeviceLimits(
                requested=watts_from_milliwatts(pynvml.nvmlDeviceGetPowerManagementLimit(handle)),
                enforced=watts_from_milliwatts(pynvml.nvmlDeviceGetEnforcedPowerLimit(handle)),
                low=watts_from_milliwatts(low),
                high=watts_from_milliwatts(high),
                max_clock=_max_clock(handle),
                default=_optional(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle, watts_from_milliwatts),
                persistent=_optional(pynvml.nvmlDeviceGetPersistenceMode, handle, bool),
            )

    def set_cap(self, device: str, cap: Watts) -> None:
        with _device(device) as handle:
            pynvml.nvmlDeviceSetPowerManagementLimit(handle, milliwatts(cap))

    def lock_clock(self, device: str, ceiling: Hertz) -> None:
        """A ceiling, not a fixed clock: an idle GPU may still clock down."""
        with _device(device) as handle:
            pynvml.nvmlDeviceSetGpuLockedClocks(handle, 0, megahertz(ceiling))

    def clocks(self, device: str) -> str | None:
        """None: this driver has no call that tells whether clocks are locked."""
        return None

    def unlock_clock(self, device: str, found: str | None) -> None:
        with _device(device) as handle:
            pynvml.nvmlDeviceResetGpuLockedClocks(handle)

    def life(self, device: str) -> DriverLife:
        try:
            load = str(self._module.stat().st_ino)
        except OSError:
            load = None
        try:
            with _device(device) as handle:
                energy = _optional(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle, joules_from_millijoules)
        except ControlError:
            energy = None
        return DriverLife(load, energy)

    def hold(self, device: str) -> None:
        if device in self._held:
            return
        with _device(device) as handle:
            if _optional(pynvml.nvmlDeviceGetPersistenceMode, handle, bool) is not False:
                return
            open_nvml()  # one user more, until let_go
            self._held.add(device)

    def let_go(self, device: str) -> None:
        if device in self._held:
            self._held.remove(device)
            close_nvml()

    def forbidden(self, device: str) -> str | None:
        if os.geteuid() == 0 or _capabilities() & CAP_SYS_ADMIN:
            return None
        return (
            f"Limits of {device} may be changed by root only: run energyopt with sudo, let the helper do it (once: "
            "`sudo energyopt power-helper --install`), or set one by hand with "
            f"`sudo nvidia-smi -i {device} -pl WATTS`."
        )


@contextmanager
def _device(device: str) -> Iterator[Handle]:
    try:
        open_nvml()
    except SensorUnavailableError as error:
        raise ControlError(str(error)) from error
    try:
        yield physical_handle(device)
    except pynvml.NVMLError as error:
        raise ControlError(f"{device}: {describe_error(error)}.") from error
    finally:
        close_nvml()


def _max_clock(handle: Handle) -> Hertz | None:
    """An optional fact: the driver itself refuses a clock that is too high."""
    return _optional(
        lambda of: pynvml.nvmlDeviceGetMaxClockInfo(of, pynvml.NVML_CLOCK_SM), handle, hertz_from_megahertz
    )


def _optional(read: Callable[[Handle], int], handle: Handle, convert: Callable[[int], T]) -> T | None:
    """A fact that not every driver tells."""
    try:
        return convert(read(handle))
    except pynvml.NVMLError:
        return None


def _capabilities() -> int:
    """Effective capabilities of this process as a bit set; 0 if the kernel does not tell."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
