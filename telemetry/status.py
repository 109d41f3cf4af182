"""What a device says about itself beside its energy: identity, limits, clocks, temperature, what slows it down.

Every fact may be unknown on its own: a mapping then lacks the key and a field is None. Nothing is ever 0 for unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NewType

from energyopt.core.results import Scope
from energyopt.core.units import Hertz, Seconds, Watts

Celsius = NewType("Celsius", float)
Ratio = NewType("Ratio", float)
"""A share between 0 and 1."""

PowerKind = Literal["instant", "average"]
LimitKind = Literal["requested", "enforced", "default", "min", "max"]
ClockDomain = Literal["sm", "memory"]
Bound = Literal["min", "max"]
Thermometer = Literal["gpu", "hotspot", "memory"]
Unit = Literal["compute", "memory"]
"""What is busy: the compute units, or the path to memory."""


class Throttle(StrEnum):
    """Why clocks are below what was asked for."""

    POWER_CAP = "power_cap"
    THERMAL_SW = "thermal_sw"
    THERMAL_HW = "thermal_hw"
    POWER_BRAKE = "power_brake"
    SYNC_BOOST = "sync_boost"
    HW_SLOWDOWN = "hw_slowdown"


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What stays the same while a driver runs.

    ``device`` is the identity that SensorId uses. ``index`` is the driver's own order, which may change at a reboot.
    ``partitions`` counts the logical devices (MIG instances, compute partitions) that share this one's sensors; None
    where the device is not divided. ``group`` names what several devices share a module sensor by, if they do.
    """

    device: str
    vendor: Literal["nvidia", "amd"]
    model: str
    index: int
    pci: str | None = None
    driver: str | None = None
    partitions: int | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """One look at a device. ``limits`` bound power; ``clock_bounds`` what a clock was locked to, where a driver tells.

    ``throttled`` holds the reasons that act now (empty: none; None: not known). ``throttle_time`` is the driver's
    cumulative time by reason and may restart.
    """

    at: Seconds
    power: Mapping[tuple[Scope, PowerKind], Watts] = field(default_factory=dict)
    limits: Mapping[LimitKind, Watts] = field(default_factory=dict)
    clocks: Mapping[ClockDomain, Hertz] = field(default_factory=dict)
    clock_bounds: Mapping[tuple[ClockDomain, Bound], Hertz] = field(default_factory=dict)
    temperature: Mapping[Thermometer, Celsius] = field(default_factory=dict)
    utilization: Mapping[Unit, Ratio] = field(default_factory=dict)
    throttled: frozenset[Throttle] | None = None
    throttle_time: Mapping[Throttle, Seconds] = field(default_factory=dict)
