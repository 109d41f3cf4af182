"""Searches on the synthetic surface: what a regression of the search, its start or its statistics would show first."""

from __future__ import annotations

from statistics import median

import pytest

from energyopt.core.clock import FakeClock
from energyopt.core.errors import OutOfMemoryError
from energyopt.core.study import Sampler
from energyopt.store.memory import MemoryStudyStore
from tuner.contest import Outcome, feasible_share, optimum, run_contest, synthetic_search_space, truth_of, warm_points

SEEDS = range(5)


def contest(sampler: Sampler, seed: int, *, trials: int = 20, warm: bool = True) -> Outcome:
    return run_contest(MemoryStudyStore(FakeClock()), sampler, seed, trials=trials, at=(trials,), warm=warm)


def test_the_surface_has_the_shape_it_says() -> None:
    space = synthetic_search_space()
    unfit = 0
    for params in space.plan.points:
        try:
            truth_of(space.apply(params))
        except OutOfMemoryError:
            unfit += 1
    assert feasible_share() == pytest.approx(0.22, abs=0.01)
    assert unfit / len(space.plan.points) == pytest.approx(0.12, abs=0.01)
    baseline, excess = truth_of(space.apply(space.baseline_params))
    assert excess < 0
    assert baseline < 0.6 * optimum()


def test_the_simulators_choice_is_diverse_and_errs() -> None:
    chosen = warm_points(0)
    assert len(chosen) == 8
    assert len({candidate.params["decode.engine.layout"] for candidate in chosen}) > 1
    errors = [(candidate.predicted.tokens_per_joule or 0) / truth_of(candidate.deployment)[0] for candidate in chosen]
    assert all(abs(error - 1) > 0.02 for error in errors)


def test_a_warm_start_and_the_gaussian_process_find_nine_tenths_in_twenty_trials() -> None:
    found = [contest("gp", seed) for seed in SEEDS]
    luck = [contest("random", seed, warm=False) for seed in SEEDS]
    assert median(one.fractions[0] for one in found) >= 0.90
    assert median(one.fractions[0] for one in found) > median(one.fractions[0] for one in luck) + 0.1
    assert all(one.excess is None or one.excess <= 0 for one in found)
