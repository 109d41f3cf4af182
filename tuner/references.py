"""What plain luck would have found: random and Sobol search over the study's own space, beside the search that ran.

Nothing more is measured for it. A model of the trials says what every valid point is worth and whether it keeps the
SLOs, and both references are played on that model; so the figures are expectations, and only told where enough ran.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from energyopt.core.study import TrialRecord, TrialState

from .cuts import judged
from .objective import Objective, Score
from .search.gaussian import Floats, Regression
from .search.geometry import Geometry
from .search.sobol import SobolSearcher
from .space import SearchSpace
from .why import LEAST

SEEDS = 8
"""Scrambled sequences whose mean is told; random search needs none, its expectation is a formula."""
MOST_POINTS = 20_000
"""Points beyond which Sobol search is not played: each of its questions looks at all of them."""


@dataclass(frozen=True, slots=True)
class Reference:
    """``curve`` is the expected best worth after each number of trials, the baseline first, in the objective's unit.

    0 stands for nothing that keeps the SLOs.
    """

    name: str
    curve: tuple[float, ...]

    @property
    def reached(self) -> float:
        """After as many trials as the study had."""
        return self.curve[-1]


def references(space: SearchSpace, trials: Sequence[TrialRecord], objective: Objective) -> list[Reference]:
    """Random and Sobol search with as many trials as the study searched; [] where too few of them ran."""
    done = [judged(t, trials) for t in trials if t.state is TrialState.DONE]
    searched = [t for t in done if not t.origin.repeats]
    worths = _believed(space, [(space.index(t.params), _score(t, done, objective)) for t in searched])
    if worths is None:
        return []
    place = space.plan.indices.index(space.index(space.baseline_params))
    start = float(worths[place])
    found = [Reference("random", _random(np.delete(worths, place), start, len(searched)))]
    if len(worths) <= MOST_POINTS:
        found.append(Reference("sobol", _sobol(space, worths, start, len(searched))))
    return found


def _score(trial: TrialRecord, done: Sequence[TrialRecord], objective: Objective) -> Score:
    """The worth of a trial, and the worst that this configuration showed of each SLO whenever it was measured."""
    runs = [objective.score(one.result).constraints for one in done if one.deployment == trial.deployment]
    worst = {key: max(run[key] for run in runs) for key in objective.keys}
    return Score(objective.score(trial.result).value, worst)


def _believed(space: SearchSpace, scores: Sequence[tuple[tuple[int, ...], Score]]) -> Floats | None:
    """The worth of every valid point, 0 where the model expects an SLO to be missed."""
    geometry = Geometry(space)
    known = [(point, score.value) for point, score in scores if score.value is not None]
    if len(known) < LEAST:
        return None
    worth = Regression(geometry.rows([point for point, _ in known]), np.array([value for _, value in known]))
    misses = np.array([max(score.constraints.values()) for _, score in scores])
    values = np.exp(worth.at(geometry.coordinates).mean)
    if np.ptp(misses) > 0:
        broken = Regression(geometry.rows([point for point, _ in scores]), misses)
        values = np.where(broken.at(geometry.coordinates).mean <= 0, values, 0.0)
    elif misses[0] > 0:
        values = np.zeros_like(values)
    for point, score in scores:  # what was measured needs no belief
        value = math.exp(score.value) if score.value is not None and score.feasible else 0.0
        values[geometry.points.index(point)] = value
    return values


def _random(worths: Floats, start: float, count: int) -> tuple[float, ...]:
    """The expected maximum of draws without replacement: the k-th best counts unless one of the better was drawn.

    ``worths`` are those of all points but the baseline, which comes first.
    """
    ordered = np.sort(np.maximum(worths, start))[::-1]
    total, curve = len(ordered), [start]
    for drawn in range(1, count):
        missed, expected = 1.0, 0.0
        for place, value in enumerate(ordered):
            left = total - place
            still = missed * max(0, left - drawn) / left
            expected += float(value) * (missed - still)
            missed = still
            if missed < 1e-12:
                break
        curve.append(expected)
    return tuple(curve)


def _sobol(space: SearchSpace, worths: Floats, start: float, count: int) -> tuple[float, ...]:
    places = {point: place for place, point in enumerate(space.plan.indices)}
    runs = []
    for seed in range(SEEDS):
        searcher, best = SobolSearcher(space, seed), [start]
        while len(best) < count:
            asked = searcher.ask()
            worth = 0.0 if asked is None else float(worths[places[space.index(asked)]])
            best.append(max(best[-1], worth))
        runs.append(best)
    return tuple(float(value) for value in np.mean(np.array(runs), axis=0))
