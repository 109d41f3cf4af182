"""A stand-in for a real evaluator: a toy surface with the shape of serving, instant, deterministic, and honest.

It makes the trade-offs a search has to find (batching saves energy but costs latency, a slower clock saves energy up
to a point, an interior best chunk size), a region that does not fit, and one that does not start. Its joules are
labelled simulated. Tests and demonstrations of the tuner use it; it says nothing about any real machine.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from energyopt.core.clock import Clock
from energyopt.core.config import Deployment
from energyopt.core.errors import LaunchError, OutOfMemoryError
from energyopt.core.records import FinishReason, RequestRecord
from energyopt.core.results import EnergyReading, RunResult, Scope, Source, judge, summarize_latencies, total_energy
from energyopt.core.slo import Slo
from energyopt.core.study import MeasurePlan
from energyopt.core.units import Joules, Seconds, Tokens
from energyopt.core.workload import Workload

from .ports import Progress, ProgressSink

_REQUESTS = 40
_TOKENS = 16
TIME_JITTER = 0.15
"""How far the latencies of one run scatter, as the standard deviation of their logarithms."""


@dataclass(frozen=True, slots=True)
class ToyPoint:
    """The truth about one configuration: tokens per joule, tokens per second, seconds to first and next token."""

    tokens_per_joule: float
    output_rate: float
    ttft: float
    itl: float


class Surface(Protocol):
    """The truth about a machine that does not exist."""

    def point(self, deployment: Deployment, concurrency: int) -> ToyPoint:
        """Raises OutOfMemoryError or LaunchError where this machine could not run it."""
        ...


@dataclass(frozen=True, slots=True)
class ToySurface:
    """The laws of the toy machine: ``cores`` CPUs, ``top_clock`` Hz, ``memory_tokens`` of KV space."""

    cores: int = 8
    top_clock: float = 2e9
    memory_tokens: int = 66_000
    tokens_per_seq: int = 900
    idle_power: float = 60.0
    busy_power: float = 240.0

    def point(self, deployment: Deployment, concurrency: int) -> ToyPoint:
        """Raises OutOfMemoryError or LaunchError where this machine could not run it."""
        engine, power = deployment.decode.engine, deployment.decode.power
        self._check(deployment)
        clock = (power.sm_clock or self.top_clock) / self.top_clock
        if power.cap is not None:
            clock = min(clock, max(0.2, (power.cap - self.idle_power) / self.busy_power) ** (1 / 2.5))
        threads = min(engine.threads or self.cores, self.cores)
        speed = threads / (1 + 0.06 * (threads - 1))
        batch = min(engine.max_num_seqs, concurrency)
        waiting = concurrency / batch - 1
        chunk = engine.max_num_batched_tokens
        prefill = 0.45 if engine.kv.prefix_caching else 1.0
        prefill *= 1 + engine.kv.block_tokens / 400 if engine.kv.prefix_caching else 1.0
        step = (0.018 + 0.0011 * batch / clock + 0.01 / clock) / speed * (1 + 1.5 / engine.kv.block_tokens)
        chunk_time = 2.4e-5 * chunk / clock / speed * prefill
        itl = step + chunk_time * 0.6
        ttft = prefill * 600 / chunk * (step + 0.02) + chunk_time * 2 + waiting * 40 * itl
        rate = batch / (step * (1 + 0.35 * prefill) + 0.004 * prefill * 512 / chunk)
        watts = self.idle_power + self.busy_power * clock**2.5 * (threads / self.cores) * min(1.0, 0.4 + batch / 40)
        return ToyPoint(rate / watts, rate, ttft, itl)

    def _check(self, deployment: Deployment) -> None:
        engine = deployment.decode.engine
        needed = engine.max_num_seqs * self.tokens_per_seq + 3 * engine.max_num_batched_tokens
        if needed > self.memory_tokens:
            raise OutOfMemoryError(f"{needed} KV tokens are needed, the toy machine has {self.memory_tokens}.")
        if engine.threads is not None and engine.threads > 2 * self.cores:
            raise LaunchError(f"{engine.threads} threads on {self.cores} cores: the toy engine does not start.")


class FakeEvaluator:
    """Measures a surface (the toy's by default) with noise drawn from ``seed``, the configuration, the workload and the
    repetition.

    ``metered`` False leaves out all joules. Time passes on ``clock`` as the plan says; a failure takes ``launch``
    seconds. ``runs`` counts calls.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        seed: int = 0,
        noise: float = 0.04,
        surface: Surface | None = None,
        metered: bool = True,
        launch: float = 2.0,
    ) -> None:
        self._clock, self._seed, self._noise = clock, seed, noise
        self._surface: Surface = surface or ToySurface()
        self._metered, self._launch = metered, Seconds(launch)
        self._repeats: Counter[str] = Counter()
        self.runs = 0

    def run(
        self, deployment: Deployment, workload: Workload, plan: MeasurePlan, slos: Sequence[Slo], progress: ProgressSink
    ) -> RunResult:
        self.runs += 1
        progress(Progress("launching", 0.0))
        self._clock.sleep(self._launch)
        truth = self._surface.point(deployment, workload.concurrency)
        for stage, duration in (("warming", plan.warmup), ("measuring", plan.window)):
            progress(Progress(stage, 0.0))
            self._clock.sleep(duration)
            progress(Progress(stage, 1.0))
        progress(Progress("done", 1.0))
        return self._measure(truth, self._rng(deployment, workload), plan.window, slos)

    def _rng(self, deployment: Deployment, workload: Workload) -> random.Random:
        key = f"{self._seed}/{deployment.digest()}/{workload.name}/{workload.seed}"
        self._repeats[key] += 1
        return random.Random(f"{key}/{self._repeats[key]}")

    def _measure(self, truth: ToyPoint, rng: random.Random, window: Seconds, slos: Sequence[Slo]) -> RunResult:
        def noisy(value: float) -> float:
            return value * math.exp(rng.gauss(0.0, self._noise))

        tokens = max(1, round(noisy(truth.output_rate) * window))
        requests = _requests(noisy(truth.ttft), noisy(truth.itl), rng)
        readings: tuple[EnergyReading, ...] = ()
        if self._metered:
            readings = (_reading(Joules(tokens / noisy(truth.tokens_per_joule)), window),)
        return RunResult(
            window=window,
            requests=len(requests),
            failed_requests=0,
            prompt_tokens=Tokens(len(requests) * 600),
            cached_tokens=Tokens(0),
            output_tokens=Tokens(tokens),
            latencies=summarize_latencies(requests),
            verdicts=judge(slos, requests, window),
            energy=total_energy(readings),
            readings=readings,
            power_valid=self._metered,
            power_reasons=() if self._metered else ("the toy machine was told to have no meter",),
            simulated=True,
        )


def _reading(joules: Joules, window: Seconds) -> EnergyReading:
    return EnergyReading(
        device="toy", joules=joules, error=Joules(0.0), scope=Scope.GPU, source=Source.SIMULATED, window=window
    )


def _requests(ttft: float, itl: float, rng: random.Random) -> list[RequestRecord]:
    """Requests whose latencies scatter around the given ones."""
    records = []
    for number in range(_REQUESTS):
        gaps = (itl * math.exp(rng.gauss(0.0, TIME_JITTER)) for _ in range(_TOKENS - 1))
        first = ttft * math.exp(rng.gauss(0.0, TIME_JITTER))
        times = tuple(Seconds(time) for time in accumulate(gaps, initial=first))
        records.append(
            RequestRecord(
                request_id=f"toy-{number}",
                arrival=Seconds(0.0),
                end=times[-1],
                prompt_tokens=600,
                cached_tokens=0,
                output_tokens=_TOKENS,
                finish_reason=FinishReason.LENGTH,
                token_times=times,
            )
        )
    return records
