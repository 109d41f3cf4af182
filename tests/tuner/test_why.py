"""A knob's worth is what it brings alone, and only where enough was measured."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from energyopt.core.config import Deployment, EngineConfig, PoolConfig
from energyopt.core.results import EnergyTotal, RunResult, Source
from energyopt.core.study import Knob, Origin, Recommendation, Space, TrialOutcome, TrialRecord, TrialState
from energyopt.core.units import Joules, Seconds, Tokens
from tuner.objective import Objective
from tuner.saved import daily_saving
from tuner.space import Params, SearchSpace
from tuner.why import LEAST, explain

SEQS, BLOCK = "decode.engine.max_num_seqs", "decode.engine.kv.block_tokens"
SPACE = SearchSpace(
    Space(knobs=(Knob(path=SEQS, values=(8, 16, 32, 64)), Knob(path=BLOCK, values=(8, 16, 32)))),
    Deployment(decode=PoolConfig(engine=EngineConfig(model="toy"))),
)
OBJECTIVE = Objective("tokens_per_joule", ())


def run(tokens_per_joule: float) -> RunResult:
    return RunResult(
        window=Seconds(10.0),
        requests=1,
        failed_requests=0,
        prompt_tokens=Tokens(1),
        cached_tokens=Tokens(0),
        output_tokens=Tokens(1000),
        energy=EnergyTotal(joules=Joules(1000 / tokens_per_joule), error=Joules(0), sources=(Source.COUNTER,)),
        power_valid=True,
    )


def trials() -> list[TrialRecord]:
    """Halving the sequences brings a fifth each time; the block size changes nothing."""
    worth = {64: 1.0, 32: 1.2, 16: 1.44, 8: 1.728}
    return [
        TrialRecord(
            number=number,
            origin=Origin.SEARCH,
            params=params,
            deployment=SPACE.apply(params),
            state=TrialState.DONE,
            outcome=TrialOutcome.FEASIBLE,
            result=run(worth[int(str(params[SEQS]))]),
            created=datetime(2026, 1, 1, tzinfo=UTC),
        )
        for number, params in enumerate(SPACE.plan.points)
    ]


WINNER: Params = {SEQS: 8, BLOCK: 32}


def test_the_worth_is_that_of_the_knob_alone() -> None:
    first, second = explain(SPACE, trials(), OBJECTIVE, WINNER)
    assert (first.path, first.baseline, first.winner) == (SEQS, 64, 8)
    assert first.worth == pytest.approx(0.728, rel=0.05)
    assert first.importance > 0.95
    assert second.path == BLOCK
    assert abs(second.worth) < 0.02
    assert second.importance < 0.02


def test_few_trials_say_nothing() -> None:
    assert explain(SPACE, trials()[: LEAST - 1], OBJECTIVE, WINNER) == []


def test_a_day_of_saving_is_at_the_baselines_load_and_has_its_interval() -> None:
    found = Recommendation(trial=3, verified=True, pairs=3, saving=0.2, saving_low=0.15, saving_high=0.25)
    saved = daily_saving(run(4.0), found)
    assert saved is not None
    assert saved.tokens == pytest.approx(100 * 86_400)
    assert saved.joules == pytest.approx(0.2 * 100 * 86_400 / 4.0)
    assert (saved.low or 0) < saved.joules < (saved.high or 0)
    spent = saved.joules / 0.2
    assert [saved.low, saved.high] == pytest.approx([0.15 * spent, 0.25 * spent])
    assert saved.source == "counter"
    unsure = run(4.0)
    assert unsure.energy is not None
    guessed = EnergyTotal(
        joules=unsure.energy.joules, error=Joules(unsure.energy.joules / 2), sources=(Source.ESTIMATED,)
    )
    rough = daily_saving(unsure.model_copy(update={"energy": guessed}), found)
    assert rough is not None
    assert [rough.low, rough.high] == pytest.approx([0.075 * spent, 0.375 * spent])
    assert rough.source == "estimated"
    assert daily_saving(run(4.0), found.model_copy(update={"saving": None})) is None
    assert daily_saving(run(4.0).model_copy(update={"power_valid": False}), found) is None
