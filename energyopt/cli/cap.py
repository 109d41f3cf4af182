"""``energyopt cap show|set|clear``: the power limits of this machine's GPUs, by hand."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from energyopt.compose.caps import CapView, clear_caps, machine_gpus, set_caps, view_caps, wall_time
from energyopt.core.config import PowerConfig
from energyopt.core.errors import ConfigError, ControlError
from energyopt.core.units import format_duration, parse_hertz, parse_seconds, parse_watts
from telemetry.control.ports import DeviceLimits

from .output import message_console, print_json, result_console

T = TypeVar("T")
Devices = Annotated[
    list[str] | None,
    typer.Option("--device", help="GPU by UUID, PCI address or as cuda:0; repeat for several. Default: all."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def show(device: Devices = None, as_json: Json = False) -> None:
    """Limits of each GPU: requested, enforced, default and range; who holds it and for how long."""
    views = view_caps(machine_gpus(device or ()))
    if as_json:
        print_json({"devices": [view.document() for view in views]})
        return
    _print(views)
    for view in views:
        for line in _notes(view):
            message_console().print(line, markup=False, soft_wrap=True)


def set_cap(
    cap: Annotated[str | None, typer.Argument(help="Power cap of each GPU, such as 250W.")] = None,
    sm_clock: Annotated[str | None, typer.Option(help="Ceiling of the SM clock, such as 1.2GHz.")] = None,
    duration: Annotated[str, typer.Option("--for", help="Put back after this long.")] = "1h",
    device: Devices = None,
    as_json: Json = False,
) -> None:
    """Cap GPUs for a time; then what was found comes back by itself, also if this machine's energyopt is killed."""
    if cap is None and sm_clock is None:
        raise ConfigError("Give a cap such as 250W, or --sm-clock.")
    power = PowerConfig(
        cap=None if cap is None else parse_watts(cap), sm_clock=None if sm_clock is None else parse_hertz(sm_clock)
    )
    seconds = parse_seconds(duration)
    if seconds <= 0:
        raise ConfigError(f"--for {duration} is not allowed: expected a duration above 0.")
    devices = machine_gpus(device or ())
    lease = _privileged(lambda: set_caps(devices, power, seconds))
    if as_json:
        print_json({"lease": dict(lease), "devices": [view.document() for view in view_caps(devices)]})
        return
    _print(view_caps(devices))
    until = wall_time(float(lease["remaining"]))
    again = f"What was found comes back at {until}, or with: {_command('cap', 'clear')}"
    result_console().print(again, markup=False, soft_wrap=True)


def clear(device: Devices = None, as_json: Json = False) -> None:
    """End the leases on GPUs now, and put back what a dead process left."""
    devices = machine_gpus(device or ())
    said = _privileged(lambda: clear_caps(devices))
    if as_json:
        print_json({"said": list(said), "devices": [view.document() for view in view_caps(devices)]})
        return
    for line in said or ("Nothing was held.",):
        result_console().print(line, markup=False, soft_wrap=True)


def _print(views: Sequence[CapView]) -> None:
    """A block a device: its whole identity, to be copied, and its figures below; 80 columns hold both."""
    console = result_console()
    for view in views:
        console.print(f"[bold]{view.state.device}[/]  {_holder(view.lease)}")
        for line in _figures(view.state.limits):
            console.print(f"  {line}", markup=False)


def _figures(limits: DeviceLimits | None) -> list[str]:
    if limits is None:
        return ["limits unknown"]
    default = "default unknown" if limits.default is None else f"default {limits.default:g} W"
    clock = "" if limits.max_clock is None else f", SM clock to {limits.max_clock / 1e6:.0f} MHz"
    now = f"requested {limits.requested:g} W, enforced {limits.enforced:g} W"
    return [now, f"range {limits.low:g} to {limits.high:g} W, {default}{clock}"]


def _holder(lease: Mapping[str, Any] | None) -> str:
    if lease is None:
        return "held by nobody"
    who = f"process {lease['pid']}" if lease["user"] is None else f"{lease['user']} (pid {lease['pid']})"
    clock = "" if lease["sm_clock"] is None else f", SM clock up to {lease['sm_clock'] / 1e6:.0f} MHz"
    left = "" if lease["remaining"] is None else f", {format_duration(lease['remaining'])} left"
    return f"held by {who}{clock}{left}"


def _notes(view: CapView) -> list[str]:
    """What a person should know or do about a device."""
    device, limits, notes = view.state.device, view.state.limits, []
    if view.left is not None:
        notes.append(f"{device}: a process that died left a limit; put back what it found: {_command('cap', 'clear')}")
    if not view.state.capability.allowed:
        notes.append(view.state.capability.reason)
    if limits is not None and limits.persistent is False:
        fix = f"sudo nvidia-smi -i {device} -pm 1"
        notes.append(f"{device}: without persistence mode limits go with the GPU's last user; switch it on: {fix}")
    if view.lease is not None and device in view.lease.get("foreign", ()):
        notes.append(f"{device}: someone else has changed the limit since; it is left alone.")
    return notes


def _privileged(work: Callable[[], T]) -> T:
    """What ``work`` returns; a refusal for want of permission is told with the command that would do it."""
    try:
        return work()
    except ControlError as error:
        if os.geteuid() == 0 or "root" not in str(error):
            raise
        raise ControlError(f"{error} This very command: sudo {_command(*sys.argv[1:])}") from error


def _command(*words: str) -> str:
    """A command line that works from any directory and under sudo, which has a PATH of its own."""
    program = Path(sys.argv[0])
    name = str(program.resolve()) if program.is_file() else "energyopt"
    return shlex.join([name, *words])
