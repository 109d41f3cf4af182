"""A driver and a helper that live in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from energyopt.core.errors import ControlError
from energyopt.core.units import Hertz, Joules, Watts

from .ports import DeviceLimits, DriverLife
from .protocol import Acquire, Request

FOUND, LOW, HIGH, DEFAULT = Watts(500.0), Watts(200.0), Watts(700.0), Watts(650.0)
USED = Joules(1000.0)


@dataclass(slots=True)
class FakeDevice:
    """State of one device; ``other_limiter`` is a lower limit that someone else enforces."""

    requested: Watts = FOUND
    low: Watts = LOW
    high: Watts = HIGH
    clock: Hertz | None = None
    other_limiter: Watts | None = None
    energy: Joules = USED
    held: bool = False

    def reload(self) -> None:
        """The driver starts anew: limits are the default, clocks free, and the energy counter begins at 0."""
        self.requested, self.clock, self.energy = DEFAULT, None, Joules(0.0)


class FakeLimits:
    """Devices by identity. ``permitted`` False refuses every change; ``calls`` lists the changes asked for."""

    def __init__(self, devices: Iterable[str], *, permitted: bool = True) -> None:
        self.devices = {device: FakeDevice() for device in devices}
        self.permitted = permitted
        self.calls: list[tuple[str, str, float | None]] = []

    def limits(self, device: str) -> DeviceLimits:
        known = self._device(device)
        other = known.requested if known.other_limiter is None else known.other_limiter
        enforced = Watts(min(known.requested, other))
        return DeviceLimits(known.requested, enforced, known.low, known.high, Hertz(1.98e9), DEFAULT, True)

    def set_cap(self, device: str, cap: Watts) -> None:
        known = self._device(device)
        if not known.low <= cap <= known.high:
            raise ControlError(f"{device}: Invalid Argument.")
        self._permit(device, "cap", cap)
        known.requested = cap

    def clocks(self, device: str) -> str | None:
        """What a driver that can tell would tell: the lock that is there."""
        clock = self._device(device).clock
        return None if clock is None else f"{clock:g}"

    def lock_clock(self, device: str, ceiling: Hertz) -> None:
        self._permit(device, "lock", ceiling)
        self._device(device).clock = ceiling

    def unlock_clock(self, device: str, found: str | None) -> None:
        self._permit(device, "unlock", None)
        self._device(device).clock = None if found is None else Hertz(float(found))

    def life(self, device: str) -> DriverLife:
        known = self._device(device)
        known.energy = Joules(known.energy + 1.0)
        return DriverLife("load 1", known.energy)

    def hold(self, device: str) -> None:
        self._device(device).held = True

    def let_go(self, device: str) -> None:
        self._device(device).held = False

    def forbidden(self, device: str) -> str | None:
        return None if self.permitted else f"{device}: limits may be changed by root only; run with sudo."

    def _permit(self, device: str, what: str, value: float | None) -> None:
        if not self.permitted:
            raise ControlError(f"{device}: Insufficient Permissions.")
        self.calls.append((device, what, value))

    def _device(self, device: str) -> FakeDevice:
        if device not in self.devices:
            raise ControlError(f"{device} is not a device of this machine.")
        return self.devices[device]


class FakeChannel:
    """A helper that agrees to everything and holds nothing."""

    def __init__(self, foreign: Iterable[str] = ()) -> None:
        self.calls: list[Request] = []
        self._foreign = list(foreign)

    def call(self, request: Request) -> Mapping[str, Any]:
        self.calls.append(request)
        lifetime = request.lifetime if isinstance(request, Acquire) else 10.0
        return {"ok": True, "said": [], "lease": {"id": "ab", "remaining": lifetime, "foreign": self._foreign}}

    def close(self) -> None:
        """Nothing is open."""
