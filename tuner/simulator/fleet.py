"""Several simulated engines behind a router: a whole trace over a whole fleet, in bounded memory."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby

from energyopt.core.config import EngineConfig
from energyopt.core.results import RunResult, total_energy
from energyopt.core.units import Seconds, Tokens
from engine.counters import LOCAL_COMPUTE

from .digest import Digest
from .machine import Machine
from .meter import SimulatedMeter
from .replica import Replica, SimRequest
from .routing import Router

SLICE = 60.0
"""Seconds of simulated time whose requests are handed out at once: what is in memory, not what is computed."""


class Fleet:
    """``engines`` equal engines. Nothing follows from a finished request, so they share a load, not a clock.

    ``stepping`` turns leaps off: slower, and the same result.
    """

    def __init__(
        self, machine: Machine, config: EngineConfig, engines: int, *, router: Router, stepping: bool = False
    ) -> None:
        self._router, self._digest = router, Digest()
        self.replicas = [
            Replica(machine, config, keep=self._digest.add, stepping=stepping, name=str(number))
            for number in range(engines)
        ]

    def run(self, requests: Iterable[SimRequest]) -> RunResult:
        """Serve ``requests``, which come in order of arrival, to the last token; the window is all of it."""
        with _collector_paused():
            for start, group in _slices(requests):
                for request in group:
                    self.replicas[self._router.pick(request, len(self.replicas))].submit(request)
                for replica in self.replicas:
                    replica.run(start + SLICE)
            for replica in self.replicas:
                replica.run(math.inf)
        return self._result()

    def _result(self) -> RunResult:
        end = Seconds(max(replica.clock.now() for replica in self.replicas))
        meter = SimulatedMeter([replica.runner for replica in self.replicas])
        readings = meter.readings(Seconds(0.0), end)
        hits = _hits(self.replicas)
        return RunResult(
            window=end,
            requests=self._digest.requests,
            failed_requests=0,
            prompt_tokens=Tokens(self._digest.prompt_tokens),
            cached_tokens=Tokens(sum(hits.values())),
            output_tokens=Tokens(self._digest.output_tokens),
            latencies=self._digest.latencies(),
            verdicts=(),
            energy=total_energy(readings),
            readings=readings,
            split=meter.split([], Seconds(0.0), end),
            power_valid=True,
            power_reasons=meter.reasons,
            hits_by_tier=hits,
            simulated=True,
        )


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Requests and records form no cycles; looking through millions of them for some takes a tenth of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _slices(requests: Iterable[SimRequest]) -> Iterator[tuple[float, Iterator[SimRequest]]]:
    """Requests by the slice of time in which they arrive."""
    for number, group in groupby(requests, key=lambda request: math.floor(request.arrival / SLICE)):
        yield number * SLICE, group


def _hits(replicas: Sequence[Replica]) -> Mapping[str, int]:
    """Prompt tokens found by tier, first admissions only."""
    hits: dict[str, int] = {}
    for replica in replicas:
        for tier, tokens in replica.scheduler.counters.prompt_by_source.items():
            if tier != LOCAL_COMPUTE:
                hits[tier] = hits.get(tier, 0) + tokens
    return hits
