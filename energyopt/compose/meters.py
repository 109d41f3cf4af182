"""Which sensors and power limits belong to the devices an engine will use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import AfterValidator

from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.config import DeviceKind
from energyopt.core.units import Hertz
from engine.models import choose_device
from engine.runner import device_identity
from telemetry.detect import Detection, check_kind, detect
from telemetry.visible import normal_uuid
from tuner.defaults import PowerRange

from .power import device_states

MeterName = Annotated[str, AfterValidator(check_kind)]
"""A kind of meter, "replay:FILE" among them."""


def device_identities(kind: DeviceKind, ranks: int) -> tuple[str, ...]:
    """The devices that an engine of so many ranks will use, as telemetry names them; no more than there are.

    torch shows AMD's serial numbers as UUIDs; sensors and limits know them as ``AMD-`` and the serial.

    Raises ConfigError for an absent GPU.
    """
    first = choose_device(kind)
    if first.type == "cpu":
        return (device_identity(first),)
    count = min(ranks, torch.cuda.device_count())
    return tuple(normal_uuid(device_identity(torch.device(first.type, rank))) for rank in range(count))


def visible_identities(kind: DeviceKind) -> tuple[str, ...]:
    """Every device of this kind that the process sees. Raises ConfigError for an absent GPU."""
    return device_identities(kind, max(1, torch.cuda.device_count()))


def find_meter(kind: str, devices: Sequence[str], clock: Clock | None = None) -> Detection:
    """The sensors of ``devices``. Raises ConfigError for an unknown kind, SensorUnavailableError for an absent one."""
    return detect(kind, devices, clock or MonotonicClock())


def power_range(devices: Sequence[str]) -> PowerRange | None:
    """The caps that all ``devices`` take, or None where one of them cannot be capped."""
    states = device_states(devices)
    limits = [state.limits for state in states if state.limits is not None and state.capability.allowed]
    if len(limits) < len(states):
        return None
    low, high = max(limit.low for limit in limits), min(limit.high for limit in limits)
    return PowerRange(low, high, min(high, max(low, *(limit.requested for limit in limits))))


def highest_clock(devices: Sequence[str]) -> Hertz | None:
    """The SM clock that all ``devices`` reach, or None where one may not be locked or does not state its clock."""
    states = device_states(devices)
    allowed = [state.limits for state in states if state.limits is not None and state.capability.allowed]
    known = [limits.max_clock for limits in allowed if limits.max_clock is not None]
    return min(known) if len(known) == len(states) else None
