"""Statuses of devices as Prometheus families; what is not known has no series."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client.metrics_core import Metric as Family

from .catalog import DEVICE
from .device_channel import DeviceChannel
from .families import family
from .metric import Metric
from .status import DeviceStatus, Throttle

Keyed = Mapping[tuple[str, ...], float]
"""Values by labels after the first, which is the device."""


def device_families(channels: Sequence[DeviceChannel]) -> Iterator[Family]:
    """Families of all devices; nothing without devices. Calls no driver."""
    if not channels:
        return
    yield family(DEVICE.info, {_names(channel): 1.0 for channel in channels})
    yield family(DEVICE.status_up, {(channel.info.device,): float(channel.up) for channel in channels})
    counts = ((channel.info.device, channel.info.partitions) for channel in channels)
    yield family(DEVICE.partitions, {(device,): float(count) for device, count in counts if count is not None})
    for metric, read in _READERS:
        looks = ((channel.info.device, channel.status) for channel in channels)
        values = ((device, read(status)) for device, status in looks if status is not None)
        yield family(metric, {(device, *key): value for device, keyed in values for key, value in keyed.items()})
    totals = (
        (channel.info.device, reason, spent) for channel in channels for reason, spent in channel.throttled.items()
    )
    yield family(DEVICE.throttle, {(device, reason.value): spent for device, reason, spent in totals})


def device_powers(channels: Iterable[DeviceChannel]) -> dict[tuple[str, ...], float]:
    """Power by device, scope and kind, as the sensors' own family labels it."""
    found: dict[tuple[str, ...], float] = {}
    for channel in channels:
        status = channel.status
        if status is not None:
            device = channel.info.device
            found |= {(device, str(scope), kind): watts for (scope, kind), watts in status.power.items()}
    return found


def _names(channel: DeviceChannel) -> tuple[str, ...]:
    info = channel.info
    return (info.device, str(info.index), info.vendor, info.model, info.pci or "", info.driver or "")


def _limits(status: DeviceStatus) -> Keyed:
    return {(kind,): watts for kind, watts in status.limits.items()}


def _clocks(status: DeviceStatus) -> Keyed:
    return {(domain,): hertz for domain, hertz in status.clocks.items()}


def _bounds(status: DeviceStatus) -> Keyed:
    return {(domain, bound): hertz for (domain, bound), hertz in status.clock_bounds.items()}


def _throttled(status: DeviceStatus) -> Keyed:
    if status.throttled is None:
        return {}
    return {(reason.value,): float(reason in status.throttled) for reason in Throttle}


def _temperature(status: DeviceStatus) -> Keyed:
    return {(sensor,): degrees for sensor, degrees in status.temperature.items()}


def _utilization(status: DeviceStatus) -> Keyed:
    return {(unit,): share for unit, share in status.utilization.items()}


_READERS: tuple[tuple[Metric, Callable[[DeviceStatus], Keyed]], ...] = (
    (DEVICE.limit, _limits),
    (DEVICE.clock, _clocks),
    (DEVICE.locked_clock, _bounds),
    (DEVICE.throttled, _throttled),
    (DEVICE.temperature, _temperature),
    (DEVICE.utilization, _utilization),
)
