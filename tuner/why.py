"""Why this one: what each knob of the winner was worth, and how much each knob matters over the whole space.

Read from the same process that led the search, fitted to what was measured: an effect is what the model expects, not a
measurement of its own, and is only told where enough trials ran.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from energyopt.core.study import TrialRecord, TrialState, Value

from .objective import Objective
from .search.gaussian import Floats, Regression
from .search.geometry import Geometry
from .space import Params, SearchSpace

LEAST = 6
"""Measured trials below which a model of several knobs says nothing."""


@dataclass(frozen=True, slots=True)
class KnobWorth:
    """``worth`` is the relative change of what is maximised by moving this knob alone from the winner's value back.

    0.1 means that the winner's value brings 10%. ``importance`` is the share of the variance over all valid points that
    this knob explains alone.
    """

    path: str
    baseline: Value
    winner: Value
    worth: float
    importance: float


def explain(space: SearchSpace, trials: Sequence[TrialRecord], objective: Objective, winner: Params) -> list[KnobWorth]:
    """All knobs, the most worth first; [] where too few trials ran to say anything."""
    geometry = Geometry(space)
    known = [
        (space.index(trial.params), math.log(value))
        for trial in trials
        if trial.state is TrialState.DONE and not trial.origin.verifies and trial.result is not None
        if (value := objective.value(trial.result)) is not None
    ]
    if len(known) < LEAST:
        return []
    model = Regression(geometry.rows([point for point, _ in known]), np.array([value for _, value in known]))
    everywhere = model.at(geometry.coordinates).mean
    best, usual = space.index(winner), space.index(space.baseline_params)
    found = []
    for place, knob in enumerate(space.knobs):
        back = (*best[:place], usual[place], *best[place + 1 :])
        here, there = model.at(geometry.rows([best, back])).mean
        share = _importance(everywhere, np.array([point[place] for point in geometry.points]))
        worth = math.exp(float(here - there)) - 1
        found.append(KnobWorth(knob.path, space.baseline_params[knob.path], winner[knob.path], worth, share))
    return sorted(found, key=lambda one: (-one.worth, -one.importance))


def _importance(values: Floats, groups: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
    """Variance of the group means, weighted, over the variance of all."""
    total = float(np.var(values))
    if total <= 1e-12:
        return 0.0
    means = [(np.mean(values[groups == group]), np.count_nonzero(groups == group)) for group in np.unique(groups)]
    center = float(np.mean(values))
    between = sum(float(count) * float(mean - center) ** 2 for mean, count in means) / len(values)
    return between / total
