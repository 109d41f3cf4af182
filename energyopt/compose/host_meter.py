"""A meter for the whole machine, whoever uses it: every GPU, and the CPUs. Loads neither torch nor the engine."""

from __future__ import annotations

from collections.abc import Sequence

from energyopt.core.clock import Clock
from energyopt.core.errors import SensorUnavailableError
from energyopt.core.units import Seconds
from telemetry.amd.process import AmdProcess
from telemetry.amd.source import list_amd
from telemetry.detect import Detection, detect
from telemetry.host import HostScan
from telemetry.meter import Meter
from telemetry.nvml import list_gpus

CPU = ("cpu:0",)
WARM_UP = 2.0
"""Seconds in which a sensor is expected to begin: a counter must change once before anything is known."""


def host_meter(kind: str, clock: Clock) -> Meter:
    """Sensors of all devices of this machine, not yet sampling.

    "auto" takes every GPU and the CPUs' counters, and estimates the CPUs only where nothing is measured; it never
    fails. A kind asked for by name raises SensorUnavailableError where it is absent, ConfigError where unknown.
    """
    found = _auto(clock) if kind == "auto" else detect(kind, _devices(kind, clock), clock)
    return Meter(found.sources, clock, found.reasons, statuses=found.statuses)


def await_sensors(meter: Meter, clock: Clock) -> None:
    """Wait until every curve has begun, at most WARM_UP seconds. Call once the meter samples."""
    deadline = clock.now() + WARM_UP
    while clock.now() < deadline and any(channel.curve.coverage is None for channel in meter.channels):
        clock.sleep(Seconds(0.02))


def _auto(clock: Clock) -> Detection:
    scan = HostScan(clock)
    try:
        found = scan.scan()
    finally:
        scan.close()
    if found.sources:
        return found
    try:
        estimate = detect("estimated", CPU, clock)
    except SensorUnavailableError as error:
        return Detection((), (*found.reasons, str(error)))
    return Detection(estimate.sources, (*estimate.reasons, *found.reasons))


def _devices(kind: str, clock: Clock) -> Sequence[str]:
    """What a kind that is asked for by name measures on this machine."""
    if kind == "nvml":
        return [gpu.uuid for gpu in list_gpus()]
    if kind == "amdsmi":
        process = AmdProcess(clock)
        process.join()
        try:
            return [gpu.info.device for gpu in list_amd(process)]
        finally:
            process.leave()
    return CPU
