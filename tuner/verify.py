"""Whether the winner really wins: the ranking that names candidates, and the statistics over interleaved pairs.

Pure functions of stored trials. A pair is the candidate and the baseline measured right after one another, so slow
drifts (temperature, neighbours) cancel; pairs alternate which goes first. The interval is Student's t over the pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.special import stdtrit

from energyopt.core.results import RunResult
from energyopt.core.study import Origin, TrialOutcome, TrialRecord, TrialState

from .objective import Objective
from .space import Params

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration that was feasible whenever it was measured; ``value`` is the mean of its measurements."""

    trial: int
    params: Params
    value: float


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its two-sided confidence interval; the bounds are None with fewer than two samples."""

    mean: float
    low: float | None
    high: float | None

    @property
    def positive(self) -> bool:
        """Whether the interval lies above 0."""
        return self.low is not None and self.low > 0


def rank(trials: Sequence[TrialRecord], objective: Objective) -> list[Candidate]:
    """Feasible configurations, best first; of equals the one measured first. Verification runs are not ranked."""
    groups: dict[tuple[object, ...], list[TrialRecord]] = {}
    for trial in trials:
        if trial.state is TrialState.DONE and not trial.origin.verifies:
            groups.setdefault(tuple(sorted((path, repr(v)) for path, v in trial.params.items())), []).append(trial)
    candidates = []
    for group in groups.values():
        values = [objective.value(trial.result) for trial in group if trial.result and kept(trial)]
        known = [value for value in values if value is not None]
        if known and all(kept(trial) for trial in group):
            candidates.append(Candidate(group[0].number, group[0].params, fmean(known)))
    return sorted(candidates, key=lambda candidate: (-candidate.value, candidate.trial))


def kept(trial: TrialRecord) -> bool:
    """Whether the trial ran and kept every SLO."""
    return trial.outcome is TrialOutcome.FEASIBLE and trial.result is not None


def order(pair: int) -> tuple[Origin, Origin]:
    """Who goes first in a pair: winner-baseline, baseline-winner, and so on, so neither always runs on a warm host."""
    first, second = Origin.VERIFY_WINNER, Origin.VERIFY_BASELINE
    return (first, second) if pair % 2 == 0 else (second, first)


def interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Mean and t interval of independent samples; None without any."""
    if not samples:
        return None
    mean = fmean(samples)
    if len(samples) < 2:
        return Interval(mean, None, None)
    quantile = float(stdtrit(len(samples) - 1, 0.5 + confidence / 2))
    half = quantile * stdev(samples) / math.sqrt(len(samples))
    return Interval(mean, mean - half, mean + half)


Pair = tuple[RunResult, RunResult]
"""Winner and baseline."""


def saving(pairs: Sequence[Pair]) -> Interval | None:
    """Relative energy per token saved, ``1 - tpj_baseline / tpj_winner``; None where joules were not measured."""
    ratios = []
    for winner, baseline in pairs:
        ours, theirs = winner.tokens_per_joule, baseline.tokens_per_joule
        if ours and theirs is not None:
            ratios.append(1 - theirs / ours)
    return interval(ratios)


def gain(pairs: Sequence[Pair], objective: Objective) -> Interval | None:
    """Relative gain of what the study maximises, on the same scale as ``saving``: ``1 - baseline / winner``."""
    ratios = []
    for winner, baseline in pairs:
        ours, theirs = objective.value(winner), objective.value(baseline)
        if ours is not None and theirs is not None:
            ratios.append(1 - theirs / ours)
    return interval(ratios)
