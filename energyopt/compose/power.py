"""Limits of this machine's devices: through the power helper where one listens, else through a child of our own.

Imports no engine: the helper itself starts through this module, and so does every ``energyopt cap``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from energyopt.core.errors import ControlError
from telemetry.control.backends import Backends
from telemetry.control.client import SOCKET, Channel, Connection, HelperGoneError
from telemetry.control.journal import Entry, Journal, default_directory
from telemetry.control.leased import LeasedPower
from telemetry.control.limits import Capability, Limiter
from telemetry.control.ports import DeviceLimits
from telemetry.control.protocol import Show
from telemetry.control.spawn import spawn_helper


@dataclass(frozen=True, slots=True)
class DeviceState:
    """What one device stands at; ``limits`` is None where ``capability`` says why."""

    device: str
    capability: Capability
    limits: DeviceLimits | None


def socket_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the helper listens, or is looked for."""
    return Path(environment.get("ENERGYOPT_POWER_SOCKET", SOCKET))


def limiter() -> Limiter:
    """The drivers of this process and the journal of its user."""
    return Limiter(Backends(), Journal(default_directory()))


def power_controller(devices: Sequence[str]) -> LeasedPower:
    """Sets and restores limits of ``devices``; nothing is asked of a driver until a limit is."""
    return LeasedPower(devices, partial(reach_helper, tuple(devices)))


def reach_helper(devices: Sequence[str]) -> Channel:
    """The helper, or a child that does the same. Raises ControlError with the command that would help where neither."""
    try:
        return Connection.to(socket_path())
    except HelperGoneError:
        for device in devices:
            allowed, reason = limiter().can_cap(device)
            if not allowed:
                raise ControlError(reason) from None
    return spawn_helper()


def device_states(devices: Sequence[str]) -> list[DeviceState]:
    """The state of each device as the helper sees it, or as this process does. Changes nothing."""
    try:
        channel = Connection.to(socket_path())
    except HelperGoneError:
        return [_own_view(device) for device in devices]
    try:
        found = channel.call(Show(devices=tuple(devices)))["devices"]
    finally:
        channel.close()
    return [_told_view(device, found[device]) for device in devices]


def capable_limits(devices: Sequence[str]) -> list[DeviceLimits]:
    """The limits of every device. Raises ControlError with the reason of the first that cannot be capped."""
    states = device_states(devices)
    for state in states:
        if not state.capability.allowed:
            raise ControlError(state.capability.reason)
    return [state.limits for state in states if state.limits is not None]


def cap_capability(devices: Sequence[str]) -> Capability:
    """Whether every one of ``devices`` can be capped; the reason is that of the first that cannot."""
    answers = [state.capability for state in device_states(devices)]
    return next((answer for answer in answers if not answer.allowed), answers[0])


def left_behind() -> tuple[Entry, ...]:
    """Devices that a process which died in this boot has left under a limit."""
    entries = Journal(default_directory()).entries()
    return tuple(entry for entry in entries if entry.holder.same_boot and not entry.holder.alive)


def put_back_left() -> tuple[str, ...]:
    """Put back what a process that died left, unless a helper sees to it; says what was done, or what would help."""
    if not left_behind():
        return ()
    return limiter().recover()


def _own_view(device: str) -> DeviceState:
    view = limiter()
    capability = view.can_cap(device)
    try:
        limits = None if device.startswith("cpu") else view.backend.limits(device)
    except ControlError:
        limits = None  # the capability says why
    return DeviceState(device, capability, limits)


def _told_view(device: str, told: Mapping[str, object]) -> DeviceState:
    limits = told.get("limits")
    known = DeviceLimits(**limits) if isinstance(limits, dict) else None
    return DeviceState(device, Capability(bool(told["allowed"]), str(told["reason"])), known)
