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

from .certainty import Doubt, doubts
from .drift import NO_DRIFT, Drift, drift_of
from .objective import Objective
from .space import Params

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration that was feasible whenever it was measured; ``value`` is the mean of its ``runs``.

    ``doubts`` are the SLOs that these runs keep by estimate but not for sure.
    """

    trial: int
    params: Params
    value: float
    runs: int = 1
    doubts: tuple[Doubt, ...] = ()


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its two-sided confidence interval; the bounds are None with fewer than two ``samples``."""

    mean: float
    low: float | None
    high: float | None
    samples: int = 0

    @property
    def positive(self) -> bool:
        """Whether the interval lies above 0."""
        return self.low is not None and self.low > 0


def rank(trials: Sequence[TrialRecord], objective: Objective, drift: Drift = NO_DRIFT) -> list[Candidate]:
    """Feasible configurations, best first; of equals the one measured first. Verification runs are not ranked.

    What is believed of ``drift`` is taken out of the values.
    """
    groups: dict[tuple[object, ...], list[TrialRecord]] = {}
    for trial in trials:
        if trial.state is TrialState.DONE and not trial.origin.verifies:
            groups.setdefault(tuple(sorted((path, repr(v)) for path, v in trial.params.items())), []).append(trial)
    candidates = []
    for group in groups.values():
        results = [(trial.number, trial.result) for trial in group if trial.result and kept(trial)]
        values = [(number, objective.value(result)) for number, result in results]
        known = [value / drift.factor(number) for number, value in values if value is not None]
        if known and all(kept(trial) for trial in group):
            unsure = tuple(doubts([result for _, result in results]))
            candidates.append(Candidate(group[0].number, group[0].params, fmean(known), len(group), unsure))
    return sorted(candidates, key=lambda candidate: (-candidate.value, candidate.trial))


def drift_between(trials: Sequence[TrialRecord], baseline: Params, objective: Objective) -> Drift:
    """How the baseline's worth changed over the search."""
    runs = [t for t in trials if t.state is TrialState.DONE and not t.origin.verifies and t.params == baseline]
    values = [(trial.number, objective.value(trial.result)) for trial in runs if trial.result is not None]
    return drift_of([(number, value) for number, value in values if value is not None])


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
        return Interval(mean, None, None, len(samples))
    quantile = float(stdtrit(len(samples) - 1, 0.5 + confidence / 2))
    half = quantile * stdev(samples) / math.sqrt(len(samples))
    return Interval(mean, mean - half, mean + half, len(samples))


Pair = tuple[RunResult, RunResult]
"""Winner and baseline."""


def unreal(pairs: Sequence[Pair]) -> str | None:
    """The word for pairs that no hardware made now, simulated or replayed; None for measurements.

    Such pairs repeat themselves: no interval of them says anything of a machine's noise.
    """
    results = [result for pair in pairs for result in pair]
    if any(result.simulated for result in results):
        return "Simulated"
    return "Replayed" if any(result.replayed for result in results) else None


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
