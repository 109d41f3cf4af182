"""Whether a configuration keeps its SLOs for sure: the samples of all its runs, counted together.

An SLO on a percentile is kept for sure if so few samples exceed its target that a population that misses it would
hardly have shown so few (the bound by order statistics of ``energyopt.core.slo``, which needs only the two counts).
One on a mean is kept for sure if the bound of the pooled mean keeps it: runs are pooled by their samples, and the
standard error of each is what its own bound says. What has neither, goodput (a rate over the run) or a run stored by an
earlier version, is as sure as its estimate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from energyopt.core.results import RunResult, VerdictRecord
from energyopt.core.slo import HIGHER_IS_BETTER, Slo, SloMetric, Statistic, quantile_kept, samples_needed
from energyopt.core.units import Seconds, format_si

MEAN_NEEDS = 8
"""Samples below which a run states no bound of its mean."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """An SLO that is kept by estimate only. ``needed`` samples without a single excess would have made it sure.

    ``over`` of the samples exceed a percentile's target; None for a mean, whose ``bound`` (seconds) does, if it has
    one.
    """

    slo: str
    samples: int
    over: int | None
    needed: int
    bound: Seconds | None = None

    @property
    def too_few(self) -> bool:
        """No outcome of so few samples could have been sure."""
        return self.samples < self.needed

    def __str__(self) -> str:
        if self.over is None and self.bound is None:
            return f"{self.slo} ({self.samples} samples tell no bound of a mean, at least {self.needed} are needed)"
        if self.over is None:
            return f"{self.slo} (the bound of the mean of {self.samples} samples is {format_si(self.bound, 's')})"
        return f"{self.slo} ({self.over} of {self.samples} samples exceed it, at least {self.needed} are needed)"


def doubts(results: Sequence[RunResult]) -> list[Doubt]:
    """The SLOs that the runs of one configuration, taken together, do not keep for sure; () if all are."""
    names = dict.fromkeys(verdict.slo for result in results for verdict in result.verdicts)
    found = (_doubt([v for r in results for v in r.verdicts if v.slo == name]) for name in names)
    return [doubt for doubt in found if doubt is not None]


def say(found: Iterable[Doubt]) -> str:
    """The doubts as part of a sentence."""
    return ", ".join(map(str, found))


def _doubt(verdicts: Sequence[VerdictRecord]) -> Doubt | None:
    slo = Slo.parse(verdicts[0].slo)
    if slo.metric is SloMetric.GOODPUT:
        return None
    return _mean(slo, verdicts) if slo.statistic is Statistic.MEAN else _percentile(slo, verdicts)


def _percentile(slo: Slo, verdicts: Sequence[VerdictRecord]) -> Doubt | None:
    q, confidence = slo.statistic.quantile, max(verdict.confidence for verdict in verdicts)
    counts = [(verdict.samples, verdict.over) for verdict in verdicts if verdict.over is not None]
    if q is None or len(counts) < len(verdicts):
        return None
    samples, over = sum(n for n, _ in counts), sum(k or 0 for _, k in counts)
    if quantile_kept(samples, over, q, confidence):
        return None
    return Doubt(verdicts[0].slo, samples, over, samples_needed(q, confidence))


def _mean(slo: Slo, verdicts: Sequence[VerdictRecord]) -> Doubt | None:
    """Means of runs weigh as their samples do, and so do their standard errors."""
    z = NormalDist().inv_cdf(max(verdict.confidence for verdict in verdicts))
    known = [
        (verdict.samples, _seconds(slo, verdict.estimate), _seconds(slo, verdict.bound))
        for verdict in verdicts
        if verdict.estimate and verdict.bound
    ]
    samples = sum(count for count, _, _ in known)
    if not samples:
        return Doubt(verdicts[0].slo, sum(verdict.samples for verdict in verdicts), None, MEAN_NEEDS)
    mean = sum(count * estimate for count, estimate, _ in known) / samples
    error = math.sqrt(sum((count * (bound - estimate) / z) ** 2 for count, estimate, bound in known)) / samples
    bound = Seconds(mean + z * error)
    return None if bound <= slo.longest else Doubt(verdicts[0].slo, samples, None, MEAN_NEEDS, bound)


def _seconds(slo: Slo, value: float | None) -> float:
    """The gap behind an interactivity, other latencies as they are."""
    return 1 / (value or math.inf) if slo.metric in HIGHER_IS_BETTER else value or 0.0
