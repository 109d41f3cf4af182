"""Limits of NVIDIA GPUs through ``nvidia-ml-py``.

Only the first setter is used: the binding's ``nvmlDeviceSetPowerManagementLimit_v2`` drops the return code and reports
success where the driver refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml

from energyopt.core.errors import ControlError, SensorUnavailableError
from energyopt.core.units import (
    Hertz,
    Watts,
    hertz_from_megahertz,
    megahertz,
    milliwatts,
    watts_from_milliwatts,
)

from ..nvml import Handle, close_nvml, describe_error, open_nvml, physical_handle
from .ports import DeviceLimits

CAP_SYS_ADMIN = 1 << 21
STATUS = Path("/proc/self/status")


class NvmlLimits:
    """The library is opened for each call and closed again: changes are rare, and a driver may come and go."""

    def limits(self, device: str) -> DeviceLimits:
        with _device(device) as handle:
            low, high = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
            return DeviceLimits(
                requested=watts_from_milliwatts(pynvml.nvmlDeviceGetPowerManagementLimit(handle)),
                enforced=watts_from_milliwatts(pynvml.nvmlDeviceGetEnforcedPowerLimit(handle)),
                low=watts_from_milliwatts(low),
                high=watts_from_milliwatts(high),
                max_clock=_max_clock(handle),
            )

    def set_cap(self, device: str, cap: Watts) -> None:
        with _device(device) as handle:
            pynvml.nvmlDeviceSetPowerManagementLimit(handle, milliwatts(cap))

    def lock_clock(self, device: str, ceiling: Hertz) -> None:
        """A ceiling, not a fixed clock: an idle GPU may still clock down."""
        with _device(device) as handle:
            pynvml.nvmlDeviceSetGpuLockedClocks(handle, 0, megahertz(ceiling))

    def unlock_clock(self, device: str) -> None:
        with _device(device) as handle:
            pynvml.nvmlDeviceResetGpuLockedClocks(handle)

    def forbidden(self, device: str) -> str | None:
        if os.geteuid() == 0 or _capabilities() & CAP_SYS_ADMIN:
            return None
        return (
            f"Limits of {device} may be changed by root only: run energyopt with sudo, or set one by hand with "
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
    try:
        return hertz_from_megahertz(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM))
    except pynvml.NVMLError:
        return None  # an optional fact: the driver itself refuses a clock that is too high


def _capabilities() -> int:
    """Effective capabilities of this process as a bit set; 0 if the kernel does not tell."""
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
