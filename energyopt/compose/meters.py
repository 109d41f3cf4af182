"""Which sensors and power limits belong to the devices an engine will use."""

from __future__ import annotations

from collections.abc import Sequence

from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.config import DeviceKind
from energyopt.core.errors import ConfigError
from energyopt.core.units import Hertz
from engine.models import choose_device
from engine.runner import device_identity
from telemetry.control.journal import Journal, default_directory
from telemetry.control.limits import Capability, PowerLimiter
from telemetry.control.nvml_limits import NvmlLimits
from telemetry.detect import KINDS, Detection, detect
from tuner.defaults import PowerRange


def device_identities(kind: DeviceKind) -> tuple[str, ...]:
    """The devices an engine of this kind will use, as telemetry names them. Raises ConfigError for an absent GPU."""
    return (device_identity(choose_device(kind)),)


def find_meter(kind: str, devices: Sequence[str], clock: Clock | None = None) -> Detection:
    """The sensors of ``devices``. Raises ConfigError for an unknown kind, SensorUnavailableError for an absent one."""
    for known in KINDS:
        if kind == known:
            return detect(known, devices, clock or MonotonicClock())
    raise ConfigError(f"meter = {kind!r} is not allowed: expected one of {', '.join(KINDS)}.")


def power_controller(devices: Sequence[str]) -> PowerLimiter:
    """Sets and restores limits of ``devices``; nothing is asked of a driver until a limit is."""
    return PowerLimiter(NvmlLimits(), devices, Journal(default_directory()))


def cap_capability(devices: Sequence[str]) -> Capability:
    """Whether every one of ``devices`` can be capped; the reason is that of the first that cannot."""
    limiter = power_controller(devices)
    answers = [limiter.can_cap(device) for device in devices]
    return next((answer for answer in answers if not answer.allowed), answers[0])


def power_range(devices: Sequence[str]) -> PowerRange | None:
    """The caps that all ``devices`` take, or None where one of them cannot be capped."""
    if not cap_capability(devices).allowed:
        return None
    limits = [NvmlLimits().limits(device) for device in devices]
    low, high = max(limit.low for limit in limits), min(limit.high for limit in limits)
    return PowerRange(low, high, min(high, max(low, *(limit.requested for limit in limits))))


def highest_clock(devices: Sequence[str]) -> Hertz | None:
    """The SM clock that all ``devices`` reach, or None where one may not be locked or does not state its clock."""
    if not cap_capability(devices).allowed:
        return None
    clocks = [NvmlLimits().limits(device).max_clock for device in devices]
    known = [clock for clock in clocks if clock is not None]
    return min(known) if len(known) == len(clocks) else None
