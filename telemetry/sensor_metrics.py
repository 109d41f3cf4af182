"""Sensors and devices as Prometheus families. A scrape reads what was sampled already and calls no driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from energyopt.core.results import Scope

from . import catalog
from .catalog import Metric, SensorMetrics
from .device_metrics import device_families, device_powers
from .families import Values, family
from .sampler import Channel, Sampler

ELSEWHERE = ("resets",)
"""Counts of a curve that have a family of their own."""


class SensorCollector(Collector):
    """Series of every sensor and every device of a sampler."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def describe(self) -> Iterator[Family]:
        """Nothing: the families depend on what is found."""
        return iter(())

    def collect(self) -> Iterator[Family]:
        channels, devices = self._sampler.channels, self._sampler.devices
        yield from _sensors(catalog.GPU, [one for one in channels if not _on_cpu(one)], device_powers(devices))
        yield from _sensors(catalog.CPU, [one for one in channels if _on_cpu(one)], {})
        yield from device_families(devices)


def _sensors(metrics: SensorMetrics, channels: Sequence[Channel], powers: Values) -> Iterator[Family]:
    """Families of one kind of sensor; ``powers`` are further ones that the sensors themselves did not read."""
    if not channels:
        return
    named = {_labels(channel): channel for channel in channels}
    energy = {(*name, str(source)): joules for name, c in named.items() for source, joules in c.curve.totals.items()}
    yield family(metrics.energy, energy)
    yield family(metrics.power, {**powers, **dict(power for name, c in named.items() for power in _power(name, c))})
    yield family(metrics.rejected, dict(item for name, c in named.items() for item in _rejected(name, c)))
    plain: tuple[tuple[Metric, Callable[[Channel], float | None]], ...] = (
        (metrics.up, lambda channel: float(channel.up)),
        (metrics.age, lambda channel: channel.age),
        (metrics.tick, lambda channel: channel.curve.tick),
        (metrics.resets, lambda channel: channel.curve.counts["resets"]),
        (metrics.errors, lambda channel: channel.errors),
        (metrics.overruns, lambda channel: channel.overruns),
        (metrics.crosscheck, lambda channel: channel.curve.crosscheck),
    )
    for metric, read in plain:
        values = {name: read(channel) for name, channel in named.items()}
        yield family(metric, {name: value for name, value in values.items() if value is not None})


def _power(name: tuple[str, ...], channel: Channel) -> Iterator[tuple[tuple[str, ...], float]]:
    """The newest power; nothing while the sensor does not answer, rather than its last value for ever."""
    sample = channel.sample
    if channel.up and sample is not None and sample.power is not None:
        yield (*name, sample.kind or "unknown"), sample.power


def _rejected(name: tuple[str, ...], channel: Channel) -> Iterator[tuple[tuple[str, ...], float]]:
    for reason, count in channel.curve.counts.items():
        if reason not in ELSEWHERE:
            yield (*name, reason), count


def _labels(channel: Channel) -> tuple[str, ...]:
    """``gpu_uuid, scope`` or ``package, domain``."""
    sensor = channel.curve.sensor
    if not _on_cpu(channel):
        return sensor.device, str(sensor.scope)
    return sensor.device.removeprefix("cpu:"), "dram" if sensor.scope is Scope.DRAM else "package"


def _on_cpu(channel: Channel) -> bool:
    return channel.curve.sensor.scope in (Scope.CPU_PACKAGE, Scope.DRAM)
