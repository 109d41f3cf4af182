"""Verifies a screened plan by event simulation: percentiles over single requests instead of mean iterations."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from energyopt.core.config import EngineConfig, KvConfig
from energyopt.core.records import RequestRecord
from energyopt.core.results import RunResult
from energyopt.core.slo import Slo
from energyopt.core.units import Seconds

from ..counting import Window
from ..window import report
from .meter import SimulatedMeter
from .planner import BUDGET, Planner
from .plans import Plan, Pool
from .pools import PooledEngines
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


class _Load:
    """Requests of the plan's lengths, each of its own prompt; the cached share is a common beginning."""

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

    def arrivals(self, rate: float, until: float) -> Iterator[SimRequest]:
        """An open loop instead: requests at random instants, ``rate`` a second in the mean."""
        now = self._random.expovariate(rate)
        while now < until:
            yield self.request(now)
            now += self._random.expovariate(rate)

    def follow(self, record: RequestRecord) -> Sequence[SimRequest]:
        return (self.request(float(record.end)),)

    def _factor(self) -> float:
        return self._random.uniform(1 - SPREAD, 1 + SPREAD)


def verify(planner: Planner, plan: Plan, slos: Sequence[Slo], *, seed: int = 0) -> Verified:
    """Run a plan for at least two generations of requests: one engine, or the smallest whole share of both pools."""
    loop = _Load(planner.lengths, seed)
    if plan.prefill is not None:
        return _verify_pools(planner, plan, plan.prefill, slos, loop)
    pool = plan.decode
    replica = Replica(planner.machine(pool.layout, pool.power), _engine(planner, pool), on_finish=loop.follow)
    for _ in range(pool.batch):
        replica.submit(loop.request(0.0, first=True))
    window = _window(planner, plan, pool.batch)
    replica.run(window.end)
    replica.abort()
    result = report(window, replica.records, replica.steps, SimulatedMeter([replica.runner]), slos)
    watts = pool.devices * _per_device(result)
    return _whole(planner, plan, result, pool.replicas * pool.layout.dp * result.output_rate, watts)


def _verify_pools(planner: Planner, plan: Plan, prefill: Pool, slos: Sequence[Slo], loop: _Load) -> Verified:
    """The smallest whole share of both pools under arrivals at random (Poisson) at the rate they were matched for."""
    decode = plan.decode
    share = math.gcd(prefill.replicas, decode.replicas)
    sides = [
        (planner.machine(pool.layout, pool.power), _engine(planner, pool), count // share)
        for pool, count in ((prefill, prefill.replicas), (decode, decode.replicas * decode.layout.dp))
    ]
    engines = PooledEngines(sides[0], sides[1], planner.link)
    flow = plan.rate / planner.lengths.output / share
    window = _window(planner, plan, flow * _life(planner, plan))
    records = engines.run(loop.arrivals(flow, window.end), window.end)
    runners = [[engine.runner for engine in pool] for pool in (engines.prefill, engines.decode)]
    watts = sum(
        pool.devices * _mean_watts(SimulatedMeter(own), window)
        for pool, own in zip((prefill, decode), runners, strict=True)
    )
    result = report(window, records, engines.steps(), SimulatedMeter([*runners[0], *runners[1]]), slos)
    return _whole(planner, plan, result, share * result.output_rate, watts)


def _engine(planner: Planner, pool: Pool) -> EngineConfig:
    """A prefill engine (batch 1) takes whole prompts; another one takes chunks beside its decodes."""
    budget = max(BUDGET, pool.batch, 2 * planner.lengths.prompt if pool.batch == 1 else 0)
    return EngineConfig(
        model=planner.spec.name,
        max_num_seqs=pool.batch,
        max_num_batched_tokens=budget,
        max_num_queued_reqs=1 << 20,
        kv=KvConfig(block_tokens=BLOCK),
        layout=pool.layout,
    )


def _life(planner: Planner, plan: Plan) -> float:
    return plan.ttft + plan.tpot * planner.lengths.output


def _window(planner: Planner, plan: Plan, underway: float) -> Window:
    life, generations = _life(planner, plan), max(2.0, MIN_REQUESTS / max(underway, 1.0))
    return Window(Seconds(1.2 * life), Seconds((1.2 + generations) * life))


def _per_device(result: RunResult) -> float:
    return sum(reading.joules / reading.window for reading in result.readings) / len(result.readings)


def _mean_watts(meter: SimulatedMeter, window: Window) -> float:
    readings = meter.readings(window.start, window.end)
    return sum(reading.joules / reading.window for reading in readings) / len(readings)


def _whole(planner: Planner, plan: Plan, result: RunResult, rate: float, watts: float) -> Verified:
    used = plan.decode.devices + (plan.prefill.devices if plan.prefill else 0)
    idle = (plan.devices - used) * planner.gpu.value("idle")
    return Verified(plan, result.model_copy(update={"simulated": True}), rate, watts + idle)
