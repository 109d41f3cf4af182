"""What ``energyopt cap`` does: show limits and leases, take devices for a time, end that before its time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.config import PowerConfig
from energyopt.core.errors import ControlError, SensorUnavailableError, UsageError
from energyopt.core.units import Seconds
from telemetry.amd.process import AmdProcess
from telemetry.amd.source import amd_driver_loaded, list_amd
from telemetry.control.client import Connection, HelperGoneError
from telemetry.control.journal import Entry, Journal, default_directory
from telemetry.control.protocol import Acquire, Clear, Show
from telemetry.names import driver_names
from telemetry.nvml import list_gpus

from .power import DeviceState, device_states, left_behind, limiter, reach_helper, socket_path

PATIENCE = Seconds(20.0)
"""A helper that was asked to end puts every limit back first."""


@dataclass(frozen=True, slots=True)
class CapView:
    """One device: its limits, the lease on it (as the helper tells it) and whether a dead process left it capped."""

    state: DeviceState
    lease: Mapping[str, Any] | None
    left: Entry | None

    def document(self) -> dict[str, object]:
        state = self.state
        return {
            "device": state.device,
            "can_be_capped": state.capability.allowed,
            "reason": state.capability.reason,
            "limits": None if state.limits is None else asdict(state.limits),
            "lease": self.lease,
            "left_behind": self.left is not None,
        }


def machine_gpus(named: Sequence[str]) -> tuple[str, ...]:
    """The devices asked for, as drivers spell them (see telemetry.names); without any, every GPU of this machine.

    Raises UsageError where there is none, or none of that name.
    """
    if named:
        try:
            return driver_names(named, MonotonicClock(), os.environ)
        except SensorUnavailableError as error:
            raise UsageError(str(error)) from error
    found: list[str] = []
    reasons: list[str] = []
    for look in (_nvidia, _amd):
        try:
            found += look()
        except SensorUnavailableError as error:
            reasons.append(str(error))
    if not found:
        raise UsageError(f"No GPU was found to cap. {' '.join(reasons)}".strip())
    return tuple(found)


def _nvidia() -> list[str]:
    return [gpu.uuid for gpu in list_gpus()]


def _amd() -> list[str]:
    """Nothing is started to look for them where the kernel has no driver for any."""
    if not amd_driver_loaded():
        return []
    process = AmdProcess(MonotonicClock())
    try:
        return [gpu.info.device for gpu in list_amd(process)]
    finally:
        process.close()


def view_caps(devices: Sequence[str]) -> list[CapView]:
    """Where each device stands. Changes nothing."""
    leases = _leases()
    left = {entry.device: entry for entry in left_behind()}
    held = {device: lease for lease in leases for device in lease["devices"]}
    return [CapView(state, held.get(state.device), left.get(state.device)) for state in device_states(devices)]


def set_caps(devices: Sequence[str], power: PowerConfig, duration: Seconds) -> Mapping[str, Any]:
    """Take devices for ``duration``, beyond the end of this process; the lease. Raises ControlError."""
    channel = reach_helper(devices)
    try:
        request = Acquire(devices=tuple(devices), cap=power.cap, sm_clock=power.sm_clock, lifetime=duration, kept=True)
        lease: Mapping[str, Any] = channel.call(request)["lease"]
        return lease
    finally:
        channel.close()


def clear_caps(devices: Sequence[str], *, clock: Clock | None = None) -> tuple[str, ...]:
    """End the leases on ``devices`` and put back what dead processes left; says what was done.

    The helper is asked first; children of other processes, which only the journal tells of, are asked to end.
    Raises ControlError, with the device that could not be put back.
    """
    said: list[str] = []
    helper = None
    try:
        channel = Connection.to(socket_path())
        helper = channel.server
        try:
            said += channel.call(Clear(devices=tuple(devices)))["said"]
        finally:
            channel.close()
    except HelperGoneError:
        pass  # none listens; the journal says whether anything is left to do
    entries = [entry for entry in Journal(default_directory()).entries() if entry.device in devices]
    for entry in entries:
        if entry.holder.alive and entry.holder.pid != helper:
            said.append(_end_holder(entry, clock or MonotonicClock()))
    if any(not entry.holder.alive for entry in entries):
        said += limiter().recover()
    return tuple(said)


def _end_holder(entry: Entry, clock: Clock) -> str:
    """Ask the process that holds the device to put it back and end; it is told by start time, not by number alone."""
    try:
        holder = os.pidfd_open(entry.holder.pid)
    except ProcessLookupError:
        return f"{entry.device}: its holder has just ended."
    try:
        if entry.holder.alive:
            signal.pidfd_send_signal(holder, signal.SIGTERM)
    except PermissionError as error:
        raise ControlError(f"{entry.device} is held by process {entry.holder.pid}, which only root may end.") from error
    finally:
        os.close(holder)
    until = clock.now() + PATIENCE
    journal = Journal(default_directory())
    while any(left.holder == entry.holder for left in journal.entries()):
        if clock.now() > until:
            raise ControlError(f"Process {entry.holder.pid} still holds {entry.device} after {PATIENCE:g} s.")
        clock.sleep(Seconds(0.05))
    return f"{entry.device}: process {entry.holder.pid} put back what it had found."


def _leases() -> Sequence[Mapping[str, Any]]:
    """Leases of the helper; those of other processes' children, from the journal, where we may read it."""
    try:
        channel = Connection.to(socket_path())
    except HelperGoneError:
        return [_from_journal(entry) for entry in Journal(default_directory()).entries() if entry.holder.alive]
    try:
        found: Sequence[Mapping[str, Any]] = channel.call(Show())["leases"]
        return found
    except ControlError:
        return ()  # not on the allow-list: leases are not this user's to see
    finally:
        channel.close()


def _from_journal(entry: Entry) -> Mapping[str, Any]:
    cap = entry.set_milliwatts[-1] / 1e3 if entry.set_milliwatts else None
    return {
        "id": None,
        "user": None,
        "pid": entry.holder.pid,
        "devices": [entry.device],
        "cap": cap,
        "sm_clock": None,
        "remaining": None,
    }


def wall_time(seconds: float) -> str:
    """The local time of day so far ahead."""
    return time.strftime("%H:%M:%S", time.localtime(time.time() + seconds))
