"""The driver of each device, told by the form of its identity: ``GPU-`` and ``MIG-`` are NVIDIA's, ``AMD-`` AMD's."""

from __future__ import annotations

from energyopt.core.errors import ControlError
from energyopt.core.units import Hertz, Watts

from .amd_limits import AmdLimits
from .nvml_limits import NvmlLimits
from .ports import DeviceLimits, DriverLife, LimitBackend

NVIDIA, AMD = ("GPU-", "MIG-"), "AMD-"


class Backends:
    """Hands each call to the backend of the device; one vendor's library is touched only for its own devices."""

    def __init__(self, nvidia: LimitBackend | None = None, amd: LimitBackend | None = None) -> None:
        self._nvidia = nvidia or NvmlLimits()
        self._amd = amd or AmdLimits()

    def limits(self, device: str) -> DeviceLimits:
        return self._of(device).limits(device)

    def set_cap(self, device: str, cap: Watts) -> None:
        self._of(device).set_cap(device, cap)

    def clocks(self, device: str) -> str | None:
        return self._of(device).clocks(device)

    def lock_clock(self, device: str, ceiling: Hertz) -> None:
        self._of(device).lock_clock(device, ceiling)

    def unlock_clock(self, device: str, found: str | None) -> None:
        self._of(device).unlock_clock(device, found)

    def life(self, device: str) -> DriverLife:
        return self._of(device).life(device)

    def hold(self, device: str) -> None:
        self._of(device).hold(device)

    def let_go(self, device: str) -> None:
        self._of(device).let_go(device)

    def forbidden(self, device: str) -> str | None:
        return self._of(device).forbidden(device)

    def _of(self, device: str) -> LimitBackend:
        if device.startswith(NVIDIA):
            return self._nvidia
        if device.startswith(AMD):
            return self._amd
        raise ControlError(
            f"{device} is not a GPU whose limits can be set: expected an identity that begins with GPU- or AMD-."
        )
