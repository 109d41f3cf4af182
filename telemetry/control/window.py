"""The latencies of the last seconds, from the engine's own records."""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from energyopt.core.errors import ConfigError
from energyopt.core.records import Phase, RequestRecord, StepRecord
from energyopt.core.slo import Slo, SloMetric
from energyopt.core.units import Seconds

from .governor import Measure

MOST = 50_000
"""Entries kept of one metric: the newest."""


class Latency(NamedTuple):
    """``times`` equal samples at one time: the requests of one step share their gap."""

    at: Seconds
    value: float
    times: int


class LatencyWindow:
    """Samples of the metrics that ``slos`` name, for ``length`` seconds. Fed by the engine's threads, read by another.

    Gaps between tokens come from steps, first tokens from whoever streams them, both as they happen; what belongs to a
    whole request comes when it ends. A request that waits for its first token for longer than the objective allows
    counts already; a failed one counts as infinite latency. Raises ConfigError for goodput, which is no latency.
    """

    def __init__(self, slos: Sequence[Slo], length: Seconds) -> None:
        for slo in slos:
            if slo.metric is SloMetric.GOODPUT:
                raise ConfigError("The governor cannot keep a goodput: give latencies, such as ttft:p90<500ms.")
        self._slos = tuple(slos)
        self._length = length
        self._lock = threading.Lock()
        self._arrivals: dict[str, Seconds] = {}
        self._last: dict[str, Seconds] = {}
        metrics = {SloMetric.ITL, SloMetric.TTFT, *(slo.metric for slo in slos)} - {SloMetric.INTERACTIVITY}
        self._samples = {metric: deque[Latency](maxlen=MOST) for metric in metrics}

    def arrived(self, request_id: str, at: Seconds) -> None:
        """A request begins to wait for its first token."""
        with self._lock:
            self._arrivals[request_id] = at

    def first_token(self, request_id: str, at: Seconds) -> None:
        with self._lock:
            arrival = self._arrivals.pop(request_id, None)
            if arrival is not None:
                self._samples[SloMetric.TTFT].append(Latency(at, at - arrival, 1))

    def left(self, request_id: str, at: Seconds, *, failed: bool) -> None:
        """A request ended without a first token: refused or failed, which is infinite latency, or gone by itself."""
        with self._lock:
            if self._arrivals.pop(request_id, None) is not None and failed:
                self._samples[SloMetric.TTFT].append(Latency(at, math.inf, 1))

    def step(self, record: StepRecord) -> None:
        """Take the gaps that a step ends: of every request that decoded in it and had a token before."""
        with self._lock:
            gaps: Counter[float] = Counter()
            for share in record.shares:
                before = self._last.get(share.request_id)
                if share.phase is Phase.DECODE and before is not None:
                    gaps[record.end - before] += 1
                self._last[share.request_id] = record.end
            self._samples[SloMetric.ITL].extend(Latency(record.end, gap, count) for gap, count in gaps.items())

    def request(self, record: RequestRecord) -> None:
        """Take what is known when a request ends."""
        with self._lock:
            self._last.pop(record.request_id, None)
            for metric, samples in self._samples.items():
                if metric not in (SloMetric.ITL, SloMetric.TTFT):
                    values = Slo.samples_of(metric, (record,))
                    samples.extend(Latency(record.end, value, 1) for value in values)

    def measures(self, now: Seconds) -> tuple[Measure, ...]:
        """Every objective over the window that ends now."""
        with self._lock:
            self._forget(now)
            return tuple(self._measure(slo, now) for slo in self._slos)

    def pace(self, now: Seconds) -> Seconds | None:
        """The mean gap over the window; None without any."""
        with self._lock:
            self._forget(now)
            return _mean(self._samples[SloMetric.ITL])

    def oldest(self, now: Seconds) -> Seconds:
        """How long the oldest request that waits for its first token has waited; 0 without one."""
        with self._lock:
            return Seconds(max((now - arrival for arrival in self._arrivals.values()), default=0.0))

    def _measure(self, slo: Slo, now: Seconds) -> Measure:
        metric = SloMetric.ITL if slo.metric is SloMetric.INTERACTIVITY else slo.metric
        samples: Iterable[Latency] = self._samples[metric]
        if metric is SloMetric.TTFT:
            ages = (Seconds(now - arrival) for arrival in self._arrivals.values())
            samples = [*samples, *(Latency(now, age, 1) for age in ages if age > slo.target)]
        share = slo.statistic.quantile
        estimate = _mean(samples) if share is None else weighted_quantile(samples, share)
        if slo.metric is SloMetric.INTERACTIVITY and estimate is not None:
            estimate = 1 / estimate if estimate > 0 else None
        return Measure(slo, estimate, sum(entry.times for entry in samples))

    def _forget(self, now: Seconds) -> None:
        for samples in self._samples.values():
            while samples and samples[0].at < now - self._length:
                samples.popleft()


def weighted_quantile(entries: Iterable[Latency], share: float) -> float | None:
    """The smallest value that at least ``share`` of the samples do not exceed; None without samples."""
    ordered = sorted(entries, key=lambda entry: entry.value)
    needed, reached = share * sum(entry.times for entry in ordered), 0
    for entry in ordered:
        reached += entry.times
        if reached >= needed:
            return entry.value
    return None


def _mean(entries: Iterable[Latency]) -> Seconds | None:
    total, count = 0.0, 0
    for entry in entries:
        total += entry.value * entry.times
        count += entry.times
    return Seconds(total / count) if count else None
