"""On the toy surface a model must be worth more than luck; a regression of the search shows here in seconds."""

from __future__ import annotations

from statistics import median

from energyopt.core.clock import FakeClock
from energyopt.core.errors import TrialError
from energyopt.core.slo import Slo
from energyopt.core.study import MeasurePlan
from tuner.fake import FakeEvaluator
from tuner.fake_study import TOY_SLOS, toy_deployment, toy_space, toy_workload
from tuner.objective import Objective
from tuner.search.optuna import OptunaSearcher
from tuner.search.ports import Searcher
from tuner.search.random import RandomSearcher
from tuner.space import SearchSpace

SPACE = SearchSpace(toy_space(), toy_deployment())
OBJECTIVE = Objective("tokens_per_joule", TOY_SLOS)
SLOS = [Slo.parse(text) for text in TOY_SLOS]
TRIALS = 14


def best_of(searcher: Searcher, seed: int) -> float:
    """The best feasible tokens per joule after TRIALS trials, 0 without any."""
    evaluator, best = FakeEvaluator(FakeClock(), seed=seed), 0.0
    for number in range(TRIALS):
        params = searcher.ask() if number else SPACE.baseline_params
        assert params is not None
        try:
            result = evaluator.run(SPACE.apply(params), toy_workload(), MeasurePlan(), SLOS, lambda progress: None)
        except TrialError:
            searcher.tell(params, OBJECTIVE.score(None))
            continue
        score = OBJECTIVE.score(result)
        searcher.tell(params, score)
        if score.feasible:
            best = max(best, OBJECTIVE.value(result) or 0.0)
    return best


def test_tpe_beats_random_search() -> None:
    seeds = range(5)
    tpe = [best_of(OptunaSearcher(SPACE, seed, "tpe", startup=8), seed) for seed in seeds]
    luck = [best_of(RandomSearcher(SPACE, seed), seed) for seed in seeds]
    assert median(tpe) > 1.1 * median(luck)
