"""One regression test for each way in which Optuna 5 would recommend a broken configuration, or brick a study."""

from __future__ import annotations

import math
from typing import Literal

import optuna
import pytest
from optuna.trial import TrialState

from energyopt.core.errors import ConfigError
from tuner.fake_study import toy_deployment, toy_space
from tuner.objective import COMPLETES, FITS, Objective, Score
from tuner.search.optuna import OptunaSearcher
from tuner.space import Params, SearchSpace

SLO = "ttft:p90<1000ms"
SPACE = SearchSpace(toy_space(), toy_deployment())
KEYS = Objective("tokens_per_joule", [SLO]).keys
FAILED = Objective("tokens_per_joule", [SLO]).score(None)


def kept(value: float, violation: float = -0.5) -> Score:
    return Score(value, {FITS: -1.0, COMPLETES: -1.0, SLO: violation})


class Spy:
    """Keeps the studies that the searcher builds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.studies: list[optuna.Study] = []
        create = optuna.create_study

        def keep(*, direction: Literal["maximize"], sampler: optuna.samplers.BaseSampler) -> optuna.Study:
            self.studies.append(create(direction=direction, sampler=sampler))
            return self.studies[-1]

        monkeypatch.setattr(optuna, "create_study", keep)

    @property
    def complete(self) -> list[optuna.trial.FrozenTrial]:
        """The finished trials of the newest study."""
        return self.studies[-1].get_trials(states=[TrialState.COMPLETE])


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    return Spy(monkeypatch)


def started(*scores: Score) -> tuple[OptunaSearcher, list[Params]]:
    """A searcher past its first points, told ``scores`` for the first valid points."""
    searcher = OptunaSearcher(SPACE, 0, "tpe", startup=0)
    points = list(SPACE.plan.points[: len(scores)])
    for params, score in zip(points, scores, strict=True):
        searcher.tell(params, score)
    return searcher, points


def test_trap_1_a_broken_trial_is_never_complete_without_its_constraints(spy: Spy) -> None:
    searcher, _ = started(kept(1.0), kept(100.0, violation=0.7), FAILED, kept(2.0))
    searcher.ask()
    assert all(list(trial.constraints) == list(KEYS) for trial in spy.complete)
    assert spy.studies[-1].best_trial.value == 2.0


def test_trap_2_a_repeated_measurement_does_not_inherit_the_first_ones_constraints(spy: Spy) -> None:
    searcher, (params,) = started(kept(1.0, violation=0.9))
    searcher.tell(params, kept(1.5, violation=-0.3))
    searcher.ask()
    assert [trial.constraints[SLO] for trial in spy.complete] == [0.9, -0.3]
    assert spy.studies[-1].best_trial.value == 1.5


@pytest.mark.parametrize("method", ["tpe", "gp"])
def test_trap_3_keys_come_in_one_order_and_failures_do_not_brick_the_study(spy: Spy, method: str) -> None:
    searcher = OptunaSearcher(SPACE, 0, "gp" if method == "gp" else "tpe", startup=0)
    for params, score in zip(SPACE.plan.points[::900], [FAILED, kept(1.0), FAILED, kept(1.2, 0.1)], strict=False):
        searcher.tell(params, score)
    assert searcher.ask() is not None
    assert {tuple(trial.constraints) for trial in spy.complete} == {KEYS}


def test_trap_4_a_huge_excess_in_one_unit_cannot_drown_the_others() -> None:
    worst = Objective("tokens_per_joule", [SLO]).score(None).constraints.values()
    assert max(worst) == 1.0


def test_trap_6_failures_are_complete_with_the_worst_value_and_fits_broken(spy: Spy) -> None:
    searcher, _ = started(kept(3.0), kept(1.0, 0.2), FAILED)
    searcher.ask()
    failed = spy.complete[-1]
    assert failed.value == 1.0
    assert failed.constraints == {FITS: 1.0, COMPLETES: -1.0, SLO: 0.2}


def test_trap_7_a_point_outside_the_space_leaves_no_trial_running(spy: Spy) -> None:
    searcher, _ = started(kept(1.0))
    with pytest.raises(ConfigError):
        searcher.tell({**SPACE.baseline_params, "decode.engine.max_num_seqs": 7}, kept(9.0))
    assert searcher.ask() is not None
    assert len(spy.complete) == 1
    assert [trial.state for trial in spy.studies[-1].trials[:-1]] == [TrialState.COMPLETE]


def test_trap_8_a_late_second_answer_is_one_more_measurement(spy: Spy) -> None:
    searcher, _ = started(kept(1.0))
    asked = searcher.ask()
    assert asked is not None
    for value in (2.0, 2.1):
        searcher.tell(asked, kept(value))
    searcher.ask()
    assert [trial.value for trial in spy.complete] == [1.0, 2.0, 2.1]
    assert all(trial.state is not TrialState.FAIL for trial in spy.studies[-1].trials)


def test_trap_8_a_value_that_was_not_measured_is_never_nan(spy: Spy) -> None:
    searcher, _ = started(kept(2.0), Score(None, kept(0.0).constraints))
    searcher.ask()
    assert [trial.value for trial in spy.complete] == [2.0, 2.0]
    assert not any(math.isnan(trial.value or 0.0) for trial in spy.complete)


def test_trap_9_what_is_in_flight_is_known_to_the_model(spy: Spy) -> None:
    searcher, _ = started(kept(1.0), kept(2.0))
    first, second = searcher.ask(), searcher.ask()
    assert first != second
    running = spy.studies[-1].get_trials(states=[TrialState.RUNNING])
    assert len(running) == 2  # the first question, and the one being answered


def test_the_gaussian_process_proposes_valid_new_points() -> None:
    searcher = OptunaSearcher(SPACE, 0, "gp", startup=3)
    seen = [str(SPACE.baseline_params)]
    searcher.tell(SPACE.baseline_params, kept(1.0))
    for turn in range(5):
        params = searcher.ask()
        assert params is not None
        assert SPACE.check(params) is None
        assert str(params) not in seen
        seen.append(str(params))
        searcher.tell(params, kept(1.0 + turn, violation=-0.5 + 0.2 * turn))
