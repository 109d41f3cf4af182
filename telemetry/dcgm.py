"""The sensors under the names of NVIDIA's dcgm-exporter, for dashboards and alerts that already read those.

Names, units (millijoules, megahertz, nanoseconds) and labels are that exporter's; counters have no ``_total``, so this
is a page of its own. Meaning stays ours: one series per physical GPU, absent where unknown, and the energy counter
never falls. AMD GPUs have no such names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from energyopt.core.results import Scope

from .device_channel import DeviceChannel
from .sampler import Channel, Sampler
from .status import DeviceInfo, Throttle

Row = tuple[str, Literal["gauge", "counter"], str, float]


def dcgm_page(sampler: Sampler, hostname: str) -> str:
    """The page as text. Calls no driver."""
    families: dict[str, tuple[str, str, list[str]]] = {}
    for device in sampler.devices:
        if device.info.vendor != "nvidia":
            continue
        labels = _labels(device.info, hostname)
        for name, kind, text, value in _rows(device, sampler.channels):
            families.setdefault(name, (kind, text, []))[2].append(f"{name}{{{labels}}} {value:.15g}")
    return "".join(
        f"# HELP {name} {text}\n# TYPE {name} {kind}\n" + "".join(f"{line}\n" for line in lines)
        for name, (kind, text, lines) in families.items()
    )


def _rows(device: DeviceChannel, channels: Sequence[Channel]) -> Iterator[Row]:
    yield from _sensor(device.info.device, channels)
    status = device.status
    if status is None:
        return
    found: tuple[Row | None, ...] = (
        _row("SM_CLOCK", "gauge", "SM clock (in MHz).", status.clocks.get("sm"), 1e-6),
        _row("MEM_CLOCK", "gauge", "Memory clock (in MHz).", status.clocks.get("memory"), 1e-6),
        _row("GPU_TEMP", "gauge", "GPU temperature (in C).", status.temperature.get("gpu")),
        _row("MEMORY_TEMP", "gauge", "Memory temperature (in C).", status.temperature.get("memory")),
        _row("GPU_UTIL", "gauge", "GPU utilization (in %).", status.utilization.get("compute"), 100),
        _row("MEM_COPY_UTIL", "gauge", "Memory utilization (in %).", status.utilization.get("memory"), 100),
        _row("POWER_MGMT_LIMIT", "gauge", "Power limit that was asked for (in W).", status.limits.get("requested")),
        _row("ENFORCED_POWER_LIMIT", "gauge", "Power limit in force (in W).", status.limits.get("enforced")),
        _violation("POWER_VIOLATION", "power", device, Throttle.POWER_CAP),
        _violation("THERMAL_VIOLATION", "heat", device, Throttle.THERMAL_SW, Throttle.THERMAL_HW),
        _violation("SYNC_BOOST_VIOLATION", "sync boost", device, Throttle.SYNC_BOOST),
    )
    yield from (row for row in found if row is not None)


def _sensor(name: str, channels: Sequence[Channel]) -> Iterator[Row]:
    own = [one for one in channels if one.curve.sensor.device == name and one.curve.sensor.scope is not Scope.MEMORY]
    for channel in own[:1]:
        total = channel.curve.total
        watts = channel.sample.power if channel.up and channel.sample is not None else None
        rows = (
            _row("POWER_USAGE", "gauge", "Power draw (in W).", watts),
            _row("TOTAL_ENERGY_CONSUMPTION", "counter", "Energy since this exporter began (in mJ).", total, 1e3),
        )
        yield from (row for row in rows if row is not None)


def _row(name: str, kind: Literal["gauge", "counter"], text: str, value: float | None, factor: float = 1) -> Row | None:
    return None if value is None else (f"DCGM_FI_DEV_{name}", kind, text, value * factor)


def _violation(name: str, what: str, device: DeviceChannel, *reasons: Throttle) -> Row | None:
    known = [device.throttled[reason] for reason in reasons if reason in device.throttled]
    return _row(name, "counter", f"Time throttled for {what} (in ns).", sum(known) if known else None, 1e9)


def _labels(info: DeviceInfo, hostname: str) -> str:
    pairs = {
        "gpu": str(info.index),
        "UUID": info.device,
        "pci_bus_id": info.pci or "",
        "device": f"nvidia{info.index}",
        "modelName": info.model,
        "Hostname": hostname,
    }
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs.items())


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
