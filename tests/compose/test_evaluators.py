"""The evaluator that a study asks for is the one that runs, on the facts that were stored with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from energyopt.compose.evaluators import chosen, make_evaluator, no_power
from energyopt.compose.free_memory import host_memory
from energyopt.compose.results import Session, open_session
from energyopt.compose.settle import HostBusy
from energyopt.compose.study import PlannedStudy, create_study, run_study
from energyopt.core.clock import FakeClock
from energyopt.core.config import Deployment, EngineConfig, PoolConfig, PowerConfig
from energyopt.core.errors import ConfigError, LaunchError
from energyopt.core.study import MeasurePlan, StudyState
from energyopt.core.units import Seconds
from tuner.evaluators.choice import EvaluatorChoice
from tuner.evaluators.settled import SettledEvaluator
from tuner.fake import FakeEvaluator
from tuner.fake_study import toy_deployment, toy_spec, toy_workload


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return open_session(f"sqlite:///{tmp_path / 'db'}", tmp_path / "out")


def facts(**choice: object) -> dict[str, str]:
    return {"meter": "none", "evaluator": EvaluatorChoice.model_validate(choice).model_dump_json(exclude_defaults=True)}


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({}, "EmbeddedEvaluator"),
        ({"kind": "vllm", "environment": ("A=b=c",)}, "LaunchedEvaluator"),
        ({"kind": "sglang"}, "LaunchedEvaluator"),
        ({"kind": "simulator", "hardware": "h100"}, "SimulatedEvaluator"),
    ],
)
def test_each_kind_has_its_evaluator(session: Session, choice: dict[str, object], name: str) -> None:
    study = session.store.create_study(toy_spec(), facts(**choice))
    assert type(make_evaluator(session, study, ("trial",))).__name__ == name


def test_an_endpoint_needs_a_server_and_takes_no_engine_knobs(session: Session) -> None:
    study = session.store.create_study(toy_spec(), facts(kind="endpoint", url="http://127.0.0.1:9"))
    with pytest.raises(ConfigError, match="starts anew"):
        make_evaluator(session, study, ())
    spec = toy_spec(space=toy_spec().space.model_copy(update={"knobs": toy_spec().space.knobs[2:]}))
    study = session.store.create_study(spec, facts(kind="endpoint", url="http://127.0.0.1:9"))
    with pytest.raises(LaunchError, match="is a server there"):
        make_evaluator(session, study, ())


def test_studies_before_there_was_a_choice_ran_on_the_embedded_engine() -> None:
    assert chosen({}).kind == "embedded"
    with no_power().applied(PowerConfig()):
        pass


def test_a_simulated_study_runs_and_its_recording_gives_the_same_winner(session: Session) -> None:
    baseline = Deployment(decode=PoolConfig(engine=EngineConfig(model="qwen3-0.6b")))
    load = {"workload": toy_workload(0, concurrency=4), "verify_workload": toy_workload(1, concurrency=4)}
    plan = MeasurePlan(warmup=Seconds(0.1), window=Seconds(0.3))
    spec = toy_spec(trials=3, pairs=1, baseline=baseline, slos=("e2e:p90<9s",), plan=plan, **load)
    first = session.store.create_study(spec, facts(kind="simulator", hardware="h100")).id
    found = run_study(session, first, lambda progress: None)
    again = session.store.create_study(spec, facts(kind="replay", study=first)).id
    repeated = run_study(session, again, lambda progress: None)
    assert found.state is repeated.state is StudyState.SUCCEEDED
    assert found.recommendation is not None
    assert repeated.recommendation is not None
    assert found.recommendation.trial == repeated.recommendation.trial
    assert (session.artifacts / first / "report.html").exists()


def test_what_is_replayed_stays_the_same_study_and_is_no_replay(session: Session) -> None:
    planned = PlannedStudy(toy_spec(), facts(kind="replay", study="latest"), 1, {}, Seconds(1.0), ())
    measured = session.store.create_study(toy_spec(), facts(kind="simulator", hardware="h100")).id
    study = session.store.study(create_study(session, planned))
    assert chosen(study.machine).study == measured
    assert type(make_evaluator(session, study, ())).__name__ == "RecordedEvaluator"
    with pytest.raises(ConfigError, match="is a replay itself"):
        create_study(session, planned)
    stored_before = session.store.create_study(toy_spec(), facts(kind="replay", study="latest"))
    with pytest.raises(ConfigError, match="is a replay itself"):
        make_evaluator(session, stored_before, ())


def test_free_memory_is_what_the_kernel_says(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   2048 kB\n", encoding="ascii")
    assert host_memory(tmp_path / "meminfo") == 2 * 2**20
    assert host_memory(tmp_path / "absent") is None


def test_a_busy_machine_is_waited_for_and_then_measured_as_it_is() -> None:
    clock, plan = FakeClock(), MeasurePlan(warmup=Seconds(0), window=Seconds(1), settle=Seconds(10))
    answers = iter(["busy", "busy", None])
    evaluator = SettledEvaluator(FakeEvaluator(clock, launch=0.0), lambda: next(answers), clock)
    result = evaluator.run(toy_deployment(), toy_workload(), plan, (), lambda progress: None)
    assert clock.now() == pytest.approx(2.0)  # two polls and the window
    assert not result.power_reasons
    stubborn = SettledEvaluator(FakeEvaluator(clock), lambda: "others use it", clock)
    reasons = stubborn.run(toy_deployment(), toy_workload(), plan, (), lambda progress: None).power_reasons
    assert reasons == ("not_settled: others use it",)


def test_cpu_use_is_that_since_the_last_question(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu 100 0 0 900 0 0 0 0 0 0\n", encoding="ascii")
    busy = HostBusy(stat=stat)
    stat.write_text("cpu 110 0 0 990 0 0 0 0 0 0\n", encoding="ascii")
    assert busy() is None
    stat.write_text("cpu 200 0 0 1000 0 0 0 0 0 0\n", encoding="ascii")
    assert busy() == "other programs use 90% of the CPUs"
    stat.unlink()
    assert busy() is None
