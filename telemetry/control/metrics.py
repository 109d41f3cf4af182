"""What is held and what was decided, as Prometheus families. A scrape asks neither helper nor driver."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from .. import control_catalog as catalog
from ..families import family
from .governor import Reason
from .leased import HeldLease
from .loop import GovernorLoop


class ControlCollector(Collector):
    """Series of one lease, and of the governor that changes it, if one does."""

    def __init__(self, lease: HeldLease, loop: GovernorLoop | None) -> None:
        self._lease = lease
        self._loop = loop

    def describe(self) -> Iterator[Family]:
        """Nothing: registering must not ask the lease."""
        return iter(())

    def collect(self) -> Iterator[Family]:
        """A cap or ceiling is told while it is held only; a lost lease has neither."""
        lease, power = self._lease, self._lease.power
        held = () if lease.lost is not None else lease.devices
        if power.cap is not None:
            yield family(catalog.POWER_CAP, {(device,): power.cap for device in held})
        if power.sm_clock is not None:
            yield family(catalog.CLOCK_CEILING, {(device,): power.sm_clock for device in held})
        yield family(catalog.LEASE_REMAINING, {(device,): lease.remaining for device in lease.devices})
        yield family(catalog.LIMIT_FOREIGN, {(device,): float(device in lease.foreign) for device in lease.devices})
        if self._loop is not None:
            yield from self._decisions(self._loop)

    def _decisions(self, loop: GovernorLoop) -> Iterator[Family]:
        yield family(catalog.DECISIONS, {(reason.value,): loop.counts[reason.value] for reason in Reason})
        yield family(catalog.REFUSED, {(): loop.refused})
        if loop.margin is not None:
            yield family(catalog.MARGIN, {(): loop.margin})
