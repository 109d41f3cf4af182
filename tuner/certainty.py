"""Whether a configuration keeps its SLOs for sure: the samples of all its runs, counted together.

An SLO on a percentile is kept for sure if so few samples exceed its target that a population that misses it would
hardly have shown so few (the bound by order statistics of ``energyopt.core.slo``, which needs only the two counts).
What has no counts, a rate or a run stored by an earlier version, is as sure as its estimate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from energyopt.core.results import RunResult, VerdictRecord
from energyopt.core.slo import Slo, quantile_kept, samples_needed


@dataclass(frozen=True, slots=True)
class Doubt:
    """An SLO that is kept by estimate only. ``needed`` samples without a single excess would have made it sure."""

    slo: str
    samples: int
    over: int
    needed: int

    @property
    def too_few(self) -> bool:
        """No outcome of so few samples could have been sure."""
        return self.samples < self.needed

    def __str__(self) -> str:
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
    q, confidence = slo.statistic.quantile, max(verdict.confidence for verdict in verdicts)
    counts = [(verdict.samples, verdict.over) for verdict in verdicts if verdict.over is not None]
    if q is None or len(counts) < len(verdicts):
        return None
    samples, over = sum(n for n, _ in counts), sum(k or 0 for _, k in counts)
    if quantile_kept(samples, over, q, confidence):
        return None
    return Doubt(verdicts[0].slo, samples, over, samples_needed(q, confidence))
