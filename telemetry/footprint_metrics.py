"""Carbon and cost since the start as metric families. What is not configured or not known has no series."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import datetime
from threading import Lock

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from .account_catalog import ACCOUNT
from .families import family
from .footprint import Rates, RunningFootprint
from .sampler import Sampler


class FootprintCollector(Collector):
    """Follows the total of all sensors; ``advance`` is called by every scrape, and by whoever else comes by."""

    def __init__(self, sampler: Sampler, model: str, rates: Rates, utc: Callable[[], datetime]) -> None:
        self._sampler = sampler
        self._model = model
        self._running = RunningFootprint(rates)
        self._utc = utc
        self._lock = Lock()
        self.advance()

    def advance(self) -> None:
        """Take over what was measured since the last call. Calls no driver."""
        with self._lock:
            known = (channel.curve.total for channel in self._sampler.channels)
            self._running.advance(self._utc(), math.fsum(joules for joules in known if joules is not None))

    def describe(self) -> Iterator[Family]:
        """Nothing: registering reads no clock."""
        return iter(())

    def collect(self) -> Iterator[Family]:
        self.advance()
        running, rates = self._running, self._running.rates
        place = (self._model, rates.boundary)
        if rates.grid is not None:
            yield family(ACCOUNT.carbon, {place: running.grams})
            yield family(ACCOUNT.carbon_unknown, {place: running.unknown_joules})
            yield family(ACCOUNT.grid, {} if running.intensity is None else {(self._model,): running.intensity})
        if rates.price is not None:
            yield family(ACCOUNT.cost, {(*place, rates.config.currency): running.cost})
        if rates.config.pue is not None:
            yield family(ACCOUNT.pue, {(self._model,): rates.config.pue})
