"""Several simulated engines behind a router: a whole trace over a whole fleet, in bounded memory."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Protocol

from energyopt.core.config import EngineConfig
from energyopt.core.results import RunResult, total_energy
from energyopt.core.units import Seconds, Tokens
from engine.counters import LOCAL_COMPUTE

from .digest import Digest
from .machine import Machine
from .meter import SimulatedMeter
from .replica import Replica, SimRequest

SLICE = 60.0
"""Seconds of simulated time whose requests are handed out at once: what is in memory, not what is computed."""


class Router(Protocol):
    """Chooses the engine of a request from the request alone.

    Engines run ahead of one another, so no state of theirs is known when a request arrives.
    """

    def pick(self, request: SimRequest, engines: int) -> int: ...


class RoundRobin:
    """One after the other."""

    def __init__(self) -> None:
        self._next = 0

    def pick(self, request: SimRequest, engines: int) -> int:
        self._next += 1
        return (self._next - 1) % engines


class PrefixAffinity:
    """The engine that was given the longest known prefix, unless it has had ``slack`` times its share already.

    Knows prefixes by the names of their blocks; a request without a known one goes where the fewest tokens went.
    """

    def __init__(self, slack: float = 1.25) -> None:
        self._slack = slack
        self._owner: dict[bytes, int] = {}
        self._tokens: list[int] = []

    def pick(self, request: SimRequest, engines: int) -> int:
        if len(self._tokens) != engines:
            self._tokens = [0] * engines
        fresh: list[bytes] = []
        known = None
        for name in reversed(request.names):
            known = self._owner.get(name)
            if known is not None:
                break
            fresh.append(name)
        limit = self._slack * (sum(self._tokens) / engines + len(request.prompt))
        if known is None or self._tokens[known] > limit:
            known = self._tokens.index(min(self._tokens))
        self._tokens[known] += len(request.prompt) + request.output_tokens
        self._owner.update(dict.fromkeys(fresh, known))
        return known


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
