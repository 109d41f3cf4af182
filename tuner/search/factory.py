"""Which searcher a study gets."""

from __future__ import annotations

from energyopt.core.study import StudySpec
from tuner.space import SearchSpace

from .optuna import OptunaSearcher, best_method
from .ports import Searcher
from .random import RandomSearcher


def make_searcher(spec: StudySpec, space: SearchSpace) -> Searcher:
    """The searcher that ``spec.sampler`` names; "auto" takes what the budget and the installed libraries allow."""
    if spec.sampler == "random":
        return RandomSearcher(space, spec.seed)
    method = best_method(spec.budget.trials) if spec.sampler == "auto" else spec.sampler
    return OptunaSearcher(space, spec.seed, method)
