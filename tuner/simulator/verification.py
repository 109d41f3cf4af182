"""Verifies a screened plan by event simulation: percentiles over single requests instead of mean iterations."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from energyopt.core.config import EngineConfig, KvConfig
from energyopt.core.records import RequestRecord
from energyopt.core.results import RunResult
from energyopt.core.slo import Slo
from energyopt.core.units import Seconds

from ..counting import Window
from ..window import report
from .meter import SimulatedMeter
from .planner import BUDGET, Plan, Planner
from .replica import Replica, SimRequest
from .steady import Lengths

BLOCK = 16
MIN_REQUESTS = 64
"""Fewer requests than this say little about a 90th percentile."""
SPREAD = 0.5
"""Lengths vary uniformly by this share around their mean: equal lengths would march in step, which no load does."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A plan with the run of one of its engines; ``rate`` and ``watts`` are scaled to the whole budget."""

    plan: Plan
    result: RunResult
    rate: float
    watts: float

    @property
    def tokens_per_joule(self) -> float:
        return self.rate / self.watts

    @property
    def feasible(self) -> bool:
        return self.result.feasible


class _ClosedLoop:
    """As many requests in flight as the plan says, each of its own prompt; the cached share is a common beginning."""

    def __init__(self, lengths: Lengths, seed: int) -> None:
        self._lengths, self._random, self._count = lengths, random.Random(seed), 0

    def request(self, now: float, *, first: bool = False) -> SimRequest:
        lengths = self._lengths
        self._count += 1
        shared = round(lengths.prompt * lengths.cached)
        fresh = max(1, round((lengths.prompt - shared) * self._factor()))
        output = max(1, round(lengths.output * self._factor()))
        if first:  # requests underway at the start are anywhere in their answers
            output = max(1, round(output * self._random.random()))
        return SimRequest(str(self._count), now, (0,) * shared + (self._count,) * fresh, output)

    def follow(self, record: RequestRecord) -> Sequence[SimRequest]:
        return (self.request(float(record.end)),)

    def _factor(self) -> float:
        return self._random.uniform(1 - SPREAD, 1 + SPREAD)


def verify(planner: Planner, plan: Plan, slos: Sequence[Slo], *, seed: int = 0) -> Verified:
    """Run one engine of a plan without a prefill pool for at least two generations of requests.

    Raises ValueError for a plan with a prefill pool: hand-over is screened only.
    """
    if plan.prefill is not None:
        raise ValueError("a plan with a prefill pool cannot be verified by event simulation.")
    pool, lengths = plan.decode, planner.lengths
    loop = _ClosedLoop(lengths, seed)
    config = EngineConfig(
        model=planner.spec.name,
        max_num_seqs=pool.batch,
        max_num_batched_tokens=max(BUDGET, pool.batch),
        max_num_queued_reqs=max(1024, pool.batch),
        kv=KvConfig(block_tokens=BLOCK),
        layout=pool.layout,
    )
    replica = Replica(planner.machine(pool.layout, pool.power), config, on_finish=loop.follow)
    for _ in range(pool.batch):
        replica.submit(loop.request(0.0, first=True))
    life = plan.ttft + plan.tpot * lengths.output
    generations = max(2.0, MIN_REQUESTS / pool.batch)
    begin, end = Seconds(1.2 * life), Seconds((1.2 + generations) * life)
    replica.run(end)
    replica.abort()
    meter = SimulatedMeter([replica.runner])
    result = report(Window(begin, end), replica.records, replica.steps, meter, slos)
    result = result.model_copy(update={"simulated": True})
    return _whole(planner, plan, result)


def _whole(planner: Planner, plan: Plan, result: RunResult) -> Verified:
    pool = plan.decode
    engines = pool.replicas * pool.layout.dp
    per_device = sum(reading.joules / reading.window for reading in result.readings) / len(result.readings)
    idle = (plan.devices - pool.devices) * planner.gpu.value("idle")
    return Verified(plan, result, engines * result.output_rate, pool.devices * per_device + idle)
