"""The analytic fast path: one engine in steady state, by Little's law, without an event.

It serves screening only. Latency percentiles are the mean iteration with a margin for its scatter; whatever it lets
through is verified by event simulation. The margins are assumptions and are stated here.
"""

from __future__ import annotations

from dataclasses import dataclass

from energyopt.core.slo import Slo, SloMetric, Statistic

from .machine import Machine, StepCost
from .work import StepShape

QUEUEING = 1.8
"""A prompt's latency over its bare prefill time (aiconfigurator's factor against queueing)."""
SCATTER = {Statistic.MEAN: 1.0, Statistic.P50: 1.0, Statistic.P90: 1.08, Statistic.P95: 1.12, Statistic.P99: 1.2}
"""Percentile of the mean iteration time of a request over its mean."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """What a request is: prompt tokens, output tokens, and the share of the prompt that is found in a cache."""

    prompt: int
    output: int
    cached: float = 0.0

    @property
    def fresh(self) -> float:
        return max(1.0, self.prompt * (1.0 - self.cached))


@dataclass(frozen=True, slots=True)
class Steady:
    """One engine at full load: seconds, tokens per second over all its replicas of attention, watts per device."""

    iteration: float
    longest: float
    rate: float
    watts: float
    ttft: float
    clock: float

    def latency(self, metric: SloMetric, statistic: Statistic, output: int) -> float:
        """Seconds of a latency metric at a statistic."""
        if metric is SloMetric.TTFT:
            return self.ttft * SCATTER[statistic]
        if metric is SloMetric.E2E:
            return (self.ttft + self.iteration * (output - 1)) * SCATTER[statistic]
        tail = statistic in (Statistic.P95, Statistic.P99)
        if metric in (SloMetric.ITL, SloMetric.INTERACTIVITY) and tail:
            return max(self.longest, self.iteration * SCATTER[statistic])
        return self.iteration * SCATTER[statistic]

    def violation(self, slo: Slo, output: int) -> float:
        """How far beyond the target, relative to it; at most 0 keeps it."""
        value = self.latency(slo.metric, slo.statistic, output)
        if slo.metric is SloMetric.INTERACTIVITY:
            return slo.target * value - 1.0
        return value / slo.target - 1.0


def aggregated(machine: Machine, lengths: Lengths, batch: int, budget: int) -> Steady:
    """An engine that does both phases with ``batch`` requests per attention replica always in flight.

    Each iteration carries every decode and, on average, the prompt tokens of ``batch / output`` new requests.
    """
    context = lengths.prompt + lengths.output / 2
    micro = batch / machine.layout.pp
    arriving = micro / lengths.output
    mean = machine.cost(_shape(micro, context, arriving, lengths))
    chunk = min(lengths.fresh, budget - micro)
    worst = machine.cost(_shape(micro, context, chunk / lengths.fresh, lengths))
    chunks = max(1.0, lengths.fresh / max(chunk, 1.0))
    return Steady(
        iteration=mean.seconds,
        longest=worst.seconds,
        rate=machine.layout.dp * batch / mean.seconds,
        watts=mean.watts,
        ttft=QUEUEING * chunks * worst.seconds,
        clock=mean.clock,
    )


def decode_only(machine: Machine, lengths: Lengths, batch: int) -> Steady:
    """An engine of a decode pool: the cache arrives filled."""
    micro = batch / machine.layout.pp
    cost = machine.cost(_shape(micro, lengths.prompt + lengths.output / 2, 0.0, lengths))
    rate = machine.layout.dp * batch / cost.seconds
    return Steady(cost.seconds, cost.seconds, rate, cost.watts, 0.0, cost.clock)


def prefill_only(machine: Machine, lengths: Lengths) -> StepCost:
    """One prompt on an engine of a prefill pool."""
    return machine.cost(_shape(0.0, 0.0, 1.0, lengths))


def _shape(decodes: float, context: float, prompts: float, lengths: Lengths) -> StepShape:
    """``prompts`` prompts (or the fraction of one that a chunk is) beside ``decodes`` sequences at ``context``."""
    cached = lengths.prompt - lengths.fresh
    tokens = prompts * lengths.fresh
    return StepShape(
        decodes=decodes,
        decode_context=decodes * context,
        prefills=prompts,
        prefill_tokens=tokens,
        prefill_pairs=tokens * (cached + lengths.fresh / 2),
        prefill_context=prompts * cached,
        sampled=decodes + prompts,
    )
