"""The contract of a Searcher, held by every implementation."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable

import optuna
import pytest

from energyopt.core.errors import ConfigError
from energyopt.core.study import Budget, Knob, Sampler, Space
from tuner.fake_study import toy_deployment, toy_space, toy_spec
from tuner.objective import FITS, Objective, Score
from tuner.search.factory import make_searcher
from tuner.search.gp import STARTUP, GpSearcher
from tuner.search.optuna import OptunaSearcher
from tuner.search.ports import Searcher
from tuner.search.random import RandomSearcher
from tuner.search.sobol import SobolSearcher
from tuner.space import Params, SearchSpace

SMALL = SearchSpace(toy_space(small=True), toy_deployment())
LARGE = SearchSpace(toy_space(), toy_deployment())
KEYS = Objective("tokens_per_joule", ["ttft:p90<1s"]).keys

Make = Callable[[SearchSpace, int], Searcher]


def random_search(space: SearchSpace, seed: int) -> Searcher:
    return RandomSearcher(space, seed)


def tpe(space: SearchSpace, seed: int) -> Searcher:
    return OptunaSearcher(space, seed, "tpe", startup=4)


def gp(space: SearchSpace, seed: int) -> Searcher:
    return GpSearcher(space, seed, startup=4)


def sobol(space: SearchSpace, seed: int) -> Searcher:
    return SobolSearcher(space, seed)


every_searcher = pytest.mark.parametrize("make", [random_search, sobol, tpe, gp])


def score(space: SearchSpace, params: Params) -> Score:
    """Some deterministic score with feasible, infeasible and failed points."""
    place = sum(space.index(params))
    if place % 5 == 4:
        return Score(None, dict.fromkeys(KEYS, 1.0))
    return Score(math.log(1 + place), dict.fromkeys(KEYS, -1.0) | {KEYS[-1]: 0.4 if place % 3 == 0 else -0.2})


def drive(searcher: Searcher, space: SearchSpace, count: int) -> list[Params]:
    asked = []
    for _ in range(count):
        params = searcher.ask()
        if params is None:
            break
        asked.append(params)
        searcher.tell(params, score(space, params))
    return asked


@every_searcher
def test_every_point_is_valid_and_asked_once_until_none_is_left(make: Make) -> None:
    searcher = make(SMALL, 0)
    searcher.tell(SMALL.baseline_params, score(SMALL, SMALL.baseline_params))
    asked = drive(searcher, SMALL, 100)
    assert sorted(map(str, [SMALL.baseline_params, *asked])) == sorted(map(str, SMALL.plan.points))
    assert searcher.ask() is None


@every_searcher
def test_equal_seeds_ask_the_same_and_other_seeds_something_else(make: Make) -> None:
    assert drive(make(LARGE, 3), LARGE, 12) == drive(make(LARGE, 3), LARGE, 12)
    assert drive(make(LARGE, 3), LARGE, 12) != drive(make(LARGE, 4), LARGE, 12)


@every_searcher
@pytest.mark.parametrize("done", [0, 1, 5, 9])
def test_told_the_same_history_it_goes_on_as_if_it_had_never_stopped(make: Make, done: int) -> None:
    whole = drive(make(LARGE, 7), LARGE, 12)
    resumed = make(LARGE, 7)
    for params in whole[:done]:
        resumed.tell(params, score(LARGE, params))
    assert drive(resumed, LARGE, 12 - done) == whole[done:]


@every_searcher
def test_points_in_flight_are_not_asked_again(make: Make) -> None:
    searcher = make(SMALL, 0)
    asked = [searcher.ask() for _ in range(13)]
    assert len({str(params) for params in asked}) == 13
    assert searcher.ask() is None


@every_searcher
def test_a_point_told_unasked_or_twice_is_known(make: Make) -> None:
    searcher = make(SMALL, 0)
    extra = SMALL.plan.points[3]
    for value in (1.0, 2.0):
        searcher.tell(extra, Score(value, dict.fromkeys(KEYS, -1.0)))
    assert extra not in drive(searcher, SMALL, 100)


@every_searcher
def test_a_point_of_another_space_is_refused_and_changes_nothing(make: Make) -> None:
    searcher, twin = make(LARGE, 5), make(LARGE, 5)
    with pytest.raises(ConfigError, match="not in the space"):
        searcher.tell({**LARGE.baseline_params, "decode.engine.threads": 77}, Score(9.0, dict.fromkeys(KEYS, -1.0)))
    assert drive(searcher, LARGE, 8) == drive(twin, LARGE, 8)


@every_searcher
@pytest.mark.parametrize("knobs", [(), (Knob(path="decode.replicas", values=(1,)),)])
def test_a_space_of_the_baseline_alone_has_nothing_to_ask(make: Make, knobs: tuple[Knob, ...]) -> None:
    single = SearchSpace(Space(knobs=knobs), toy_deployment())
    assert make(single, 0).ask() is None


def test_the_first_points_change_one_knob_at_a_time_and_cover_the_space() -> None:
    searcher = tpe(LARGE, 1)
    first, second, third, fourth = itertools.islice(iter(searcher.ask, None), 4)

    def changed(params: Params) -> set[str]:
        return {path for path, value in params.items() if value != LARGE.baseline_params[path]}

    assert changed(first) == {"decode.power.sm_clock"}
    assert first["decode.power.sm_clock"] == 0.6e9
    assert changed(third) == {"decode.engine.max_num_seqs"}
    assert min(len(changed(second)), len(changed(fourth))) > 1


@pytest.mark.parametrize("sampler", ["random", "sobol", "tpe", "gp", "optuna-gp"])
def test_the_sampler_that_ran_has_a_name(sampler: Sampler) -> None:
    assert make_searcher(toy_spec(sampler=sampler), SMALL).name == sampler


def test_auto_takes_the_gaussian_process_where_the_budget_outlasts_its_start() -> None:
    for trials, name in ((STARTUP + 2, "gp"), (STARTUP + 1, "tpe")):
        assert make_searcher(toy_spec(sampler="auto", budget=Budget(trials=trials)), SMALL).name == name


@pytest.mark.parametrize("make", [tpe, gp])
def test_what_a_simulator_chose_counts_as_start(make: Make) -> None:
    searcher, plain = make(LARGE, 2), make(LARGE, 2)
    begun = LARGE.plan.points[100:3000:700]
    for params in begun:
        searcher.tell(params, score(LARGE, params))
    first = {str(params) for params in drive(plain, LARGE, 4)}
    assert str(searcher.ask()) not in first


def test_optuna_is_quiet_and_its_verbosity_is_left_as_found(caplog: pytest.LogCaptureFixture) -> None:
    before = optuna.logging.get_verbosity()
    optuna.logging.enable_propagation()
    try:
        with caplog.at_level(logging.INFO):
            optuna.logging.set_verbosity(optuna.logging.INFO)
            drive(tpe(LARGE, 0), LARGE, 8)
            assert optuna.logging.get_verbosity() == optuna.logging.INFO
        assert not caplog.records
    finally:
        optuna.logging.disable_propagation()
        optuna.logging.set_verbosity(before)


def test_failures_are_told_in_the_objectives_order() -> None:
    assert KEYS[0] == FITS
