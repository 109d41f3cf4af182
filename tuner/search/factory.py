"""Which searcher a study gets."""

from __future__ import annotations

import math

from energyopt.core.study import StudySpec
from tuner.space import SearchSpace

from .gp import STARTUP, GpSearcher
from .optuna import Method, OptunaSearcher
from .ports import Searcher
from .random import RandomSearcher
from .sobol import SobolSearcher


def make_searcher(spec: StudySpec, space: SearchSpace) -> Searcher:
    """The searcher that ``spec.sampler`` names; "auto" takes what the budget and the installed libraries allow."""
    if spec.sampler == "random":
        return RandomSearcher(space, spec.seed)
    if spec.sampler == "sobol":
        return SobolSearcher(space, spec.seed)
    trials = spec.budget.trials
    if spec.sampler == "gp" or (spec.sampler == "auto" and trials > 1 + STARTUP):
        return GpSearcher(space, spec.seed)
    method: Method = "gp" if spec.sampler == "optuna-gp" else "tpe"
    return OptunaSearcher(space, spec.seed, method, startup=_startup(method, trials))


def _startup(method: Method, trials: int) -> int:
    """First points before the model: a Gaussian process needs them all, TPE may begin after 3/5 of a short study."""
    return STARTUP if method == "gp" else min(STARTUP, max(3, math.ceil(trials * 3 / 5)))
