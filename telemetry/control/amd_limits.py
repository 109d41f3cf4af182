"""Limits of AMD GPUs, through the child process that holds ``amdsmi``: nothing of that library is imported here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.errors import ControlError, TelemetryError
from energyopt.core.units import Hertz, Joules, Watts

from ..amd.process import AmdProcess
from .ports import DeviceLimits, DriverLife

MODULE = Path("/sys/module/amdgpu")
"""The kernel makes a new directory, with a new number, each time the module is loaded."""


class AmdLimits:
    """The child is started at the first call for an AMD GPU and shared by all. It ends with this process."""

    def __init__(self, process: AmdProcess | None = None, *, clock: Clock | None = None, module: Path = MODULE) -> None:
        self._process = process or AmdProcess(clock or MonotonicClock())
        self._module = module

    def limits(self, device: str) -> DeviceLimits:
        """The driver tells no enforced limit beside the requested one."""
        told = self._call("power_limits", device)
        requested = Watts(told["requested"])
        return DeviceLimits(
            requested=requested,
            enforced=requested,
            low=Watts(told["low"]),
            high=Watts(told["high"]),
            max_clock=None if told["max_clock"] is None else Hertz(told["max_clock"]),
            default=None if told["default"] is None else Watts(told["default"]),
        )

    def set_cap(self, device: str, cap: Watts) -> None:
        self._call("set_cap", device, watts=cap)

    def clocks(self, device: str) -> str | None:
        return json.dumps(self._call("clock_state", device))

    def lock_clock(self, device: str, ceiling: Hertz) -> None:
        self._call("lock_clock", device, hertz=ceiling)

    def unlock_clock(self, device: str, found: str | None) -> None:
        self._call("unlock_clock", device, found=None if found is None else json.loads(found))

    def life(self, device: str) -> DriverLife:
        try:
            load = str(self._module.stat().st_ino)
        except OSError:
            load = None
        try:
            counted = self._process.call("sample", device=device)["counter"]
        except TelemetryError:
            counted = None
        return DriverLife(load, None if counted is None else Joules(counted))

    def hold(self, device: str) -> None:
        """This driver keeps limits whether it is used or not."""

    def let_go(self, device: str) -> None:
        """Nothing was held."""

    def forbidden(self, device: str) -> str | None:
        if os.geteuid() == 0:
            return None
        return (
            f"Limits of {device} may be changed by root only: run energyopt with sudo, let the helper do it (once: "
            "`sudo energyopt power-helper --install`), or set one by hand with `sudo amd-smi set --power-cap WATTS`."
        )

    def _call(self, do: str, device: str, **arguments: object) -> Any:
        try:
            return self._process.call(do, device=device, **arguments)
        except TelemetryError as error:
            raise ControlError(f"{device}: {error}") from error
