"""Sensors and their account as Prometheus text. A scrape reads what was sampled already and calls no driver."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.records import RequestRecord

from .account_metrics import AccountCollector
from .footprint import Rates
from .footprint_metrics import FootprintCollector
from .meter import Meter
from .sensor_metrics import SensorCollector
from .serving_metrics import ServingMetrics, StatsView


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

    def add(self, collector: Collector) -> None:
        """Publish further families on this page."""
        self._registry.register(collector)

    def observe_request(self, record: RequestRecord) -> None:
        """Count a finished request with the joules of the steps recorded before; soon (see Desk). Calls no driver."""
        self._meter.desk.add(partial(self._observe, record))

    def _observe(self, record: RequestRecord) -> None:
        if self._footprint is not None:
            self._footprint.advance()
        ledger = self._meter.ledger
        ledger.settle()
        tenant = ledger.owner(record.request_id).tenant
        self.serving.observe_request(record, ledger.request_energy(record.request_id), tenant)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its content type, in the format that the ``Accept`` header prefers."""
        self._meter.desk.catch_up()
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type
