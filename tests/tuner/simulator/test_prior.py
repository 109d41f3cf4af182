"""The first trials by simulation: feasible with a margin, unlike one another, and never stored as measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from energyopt.compose.calibrate import CalibrationRequest, calibrate_study
from energyopt.compose.results import Session, open_session
from energyopt.compose.warm_start import Machine, compare, warm_start
from energyopt.core.config import Deployment, EngineConfig, PoolConfig
from energyopt.core.errors import ConfigError, OutOfMemoryError
from energyopt.core.results import RunResult
from energyopt.core.slo import Slo
from energyopt.core.study import Budget, Knob, MeasurePlan, Origin, Space, StudySpec, TrialOutcome
from energyopt.core.units import Seconds
from tuner.evaluators.simulated import SimulatedEvaluator
from tuner.simulator.prior import MARGIN, candidates
from tuner.space import SearchSpace
from tuner.workload.chat import chat_workload

BASELINE = Deployment(decode=PoolConfig(engine=EngineConfig(model="llama-3.1-8b", max_num_seqs=4)))
SPACE = Space(
    knobs=(
        Knob(path="decode.engine.max_num_seqs", values=(1, 2, 4, 8, 16)),
        Knob(path="decode.engine.max_num_batched_tokens", values=(256, 2048)),
        Knob(path="decode.engine.threads", values=(None, 1, 2)),
        Knob(path="decode.power.sm_clock", values=(None, 1.2e9)),
    )
)
LOAD = chat_workload(seed=1, concurrency=8, sessions=16)
PLAN = MeasurePlan(warmup=Seconds(0.5), window=Seconds(1.5))
SLOS = ("ttft:p90<1s", "itl:p99<40ms")


def simulate(deployment: Deployment) -> RunResult:
    slos = [Slo.parse(text) for text in SLOS]
    return SimulatedEvaluator("h100").run(deployment, LOAD, PLAN, slos, lambda progress: None)


def test_candidates_keep_the_slos_with_room_and_differ_from_one_another() -> None:
    space = SearchSpace(SPACE, BASELINE)
    found = candidates(space, simulate, lambda result: result.tokens_per_joule, count=6)
    assert len(found) == 6
    for one in found:
        assert one.params["decode.engine.threads"] is None  # not simulated, so not moved
        assert one.params != space.baseline_params
        assert all(verdict.violation is not None for verdict in one.predicted.verdicts)
        assert max(verdict.violation or 0.0 for verdict in one.predicted.verdicts) <= -MARGIN
    worth = [one.predicted.tokens_per_joule or 0.0 for one in found]
    assert worth[0] == max(worth)
    first, second = (space.index(one.params) for one in found[:2])
    assert sum(a != b for a, b in zip(first, second, strict=True)) >= 2


def test_points_that_cannot_run_are_left_out() -> None:
    def only_small(deployment: Deployment) -> RunResult:
        if deployment.decode.engine.max_num_seqs > 2:
            raise OutOfMemoryError("too large")
        return simulate(deployment)

    found = candidates(SearchSpace(SPACE, BASELINE), only_small, lambda result: result.output_rate)
    assert {one.deployment.decode.engine.max_num_seqs for one in found} <= {1, 2}


def session(tmp_path: Path) -> Session:
    return open_session(f"sqlite:///{tmp_path / 'studies.db'}", tmp_path)


def spec(trials: int) -> StudySpec:
    return StudySpec(
        name="t",
        baseline=BASELINE,
        space=SPACE,
        workload=LOAD,
        verify_workload=LOAD,
        slos=SLOS,
        budget=Budget(trials=trials),
        plan=PLAN,
    )


def test_a_study_begins_with_the_baseline_and_what_was_simulated(tmp_path: Path) -> None:
    own = session(tmp_path)
    study = own.store.create_study(spec(10), {})
    assert warm_start(own, study.id, Machine("h100", "llama-3.1-8b")) == 5
    trials = own.store.trials(study.id)
    assert [trial.origin for trial in trials] == [Origin.BASELINE] + [Origin.SEARCH] * 5
    assert all(trial.result is None for trial in trials)  # a prediction is never stored as a result
    assert compare(own, study.id) == []
    own.store.start_attempt(study.id, 1, "me")
    result = simulate(trials[1].deployment)
    own.store.finish_trial(study.id, 1, TrialOutcome.FEASIBLE, result=result)
    (one,) = compare(own, study.id)
    assert one.trial.number == 1
    assert one.error("tok_s") == pytest.approx(0.0)
    assert one.error("nonsense") is None
    with pytest.raises(ConfigError, match="has trials already"):
        warm_start(own, study.id, Machine("h100", "llama-3.1-8b"))


def test_the_trials_of_a_study_calibrate_the_simulator(tmp_path: Path) -> None:
    own = session(tmp_path)
    short = spec(4).model_copy(update={"plan": MeasurePlan(warmup=Seconds(0.1), window=Seconds(0.3)), "slos": ()})
    study = own.store.create_study(short, {})
    warm_start(own, study.id, Machine("h100", "llama-3.1-8b"))
    for number, trial in enumerate(own.store.trials(study.id)[:2]):
        evaluator = SimulatedEvaluator("h100")
        result = evaluator.run(trial.deployment, short.workload, short.plan, (), lambda progress: None)
        own.store.start_attempt(study.id, number, "me")
        own.store.finish_trial(study.id, number, TrialOutcome.FEASIBLE, result=result)
    found = calibrate_study(CalibrationRequest("h100", "llama-3.1-8b"), own, study.id)
    assert found.runs == 2
    assert study.id in found.constants.provenance
    assert found.held_out["tok_s"][0] < 0.05  # what made the runs is what they are predicted by
    with pytest.raises(ConfigError, match="--model"):
        calibrate_study(CalibrationRequest("h100"), own, study.id)
