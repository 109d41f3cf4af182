"""Sensors and their account as Prometheus text. A scrape reads what was sampled already and calls no driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.records import RequestRecord
from energyopt.core.results import Scope

from . import catalog
from .account_metrics import AccountCollector
from .catalog import Metric, SensorMetrics
from .device_metrics import device_families, device_powers
from .families import Values, family
from .footprint import Rates
from .footprint_metrics import FootprintCollector
from .meter import Meter
from .sampler import Channel, Sampler
from .serving_metrics import ServingMetrics, StatsView

REPAIRED = ("resets", "rebases", "stuck")
"""Counts of a curve that are repairs; the others are refused readings."""


class Exporter:
    """One page of metrics with a registry of its own.

    ``model`` is the served model's name. ``stats`` is asked at each scrape; None leaves the engine's series out.
    ``rates`` turn joules into carbon and money; None leaves those series out, and so does a meter without sensors.
    """

    def __init__(
        self,
        meter: Meter,
        model: str,
        stats: Callable[[], StatsView] | None = None,
        *,
        rates: Rates | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._meter = meter
        self._footprint: FootprintCollector | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(SensorCollector(meter.sampler))
        self._registry.register(AccountCollector(meter.ledger, model))
        self.serving = ServingMetrics(self._registry, model, stats)
        if rates is not None and meter.channels:
            utc = (clock or MonotonicClock()).utc
            self._footprint = FootprintCollector(meter.sampler, model, rates, utc)
            self._registry.register(self._footprint)

    def observe_request(self, record: RequestRecord) -> None:
        """Count a finished request with the joules its recorded steps took so far; calls no driver."""
        if self._footprint is not None:
            self._footprint.advance()
        ledger = self._meter.ledger
        ledger.settle()
        tenant = ledger.owner(record.request_id).tenant
        self.serving.observe_request(record, ledger.request_energy(record.request_id), tenant)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its content type, in the format that the ``Accept`` header prefers."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class SensorCollector(Collector):
    """Series of every sensor and every device. A scrape reads what was sampled already and calls no driver."""

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
        if reason not in REPAIRED:
            yield (*name, reason), count


def _labels(channel: Channel) -> tuple[str, ...]:
    """``gpu_uuid, scope`` or ``package, domain``."""
    sensor = channel.curve.sensor
    if not _on_cpu(channel):
        return sensor.device, str(sensor.scope)
    return sensor.device.removeprefix("cpu:"), "dram" if sensor.scope is Scope.DRAM else "package"


def _on_cpu(channel: Channel) -> bool:
    return channel.curve.sensor.scope in (Scope.CPU_PACKAGE, Scope.DRAM)
