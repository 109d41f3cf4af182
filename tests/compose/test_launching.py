"""Every winner gives a command of its own engine, or the reason why there is none; and artifacts always."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from energyopt.cli.verdict import summary_json
from energyopt.compose.results import Session, launch_command, open_session, write_artifacts
from energyopt.core.clock import FakeClock
from energyopt.core.config import Deployment
from energyopt.core.study import Origin, Recommendation, TrialOutcome
from tuner.evaluators.choice import EVALUATOR_KEY, EvaluatorChoice
from tuner.fake import FakeEvaluator
from tuner.fake_study import toy_deployment, toy_spec, toy_workload
from tuner.space import SearchSpace

ENGINE: dict[str, Any] = {"model": "toy"}


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return open_session(f"sqlite:///{tmp_path / 'db'}", tmp_path / "out")


def won(session: Session, winner: dict[str, Any], **choice: object) -> str:
    """A stored study that has recommended ``winner``."""
    spec = toy_spec()
    facts = {EVALUATOR_KEY: EvaluatorChoice.model_validate(choice).model_dump_json(exclude_defaults=True)}
    study, params = session.store.create_study(spec, facts).id, SearchSpace(spec.space, spec.baseline).baseline_params
    measured = FakeEvaluator(FakeClock(), surface=None).run(
        toy_deployment(), toy_workload(), spec.plan, (), lambda progress: None
    )
    for origin, deployment in ((Origin.BASELINE, spec.baseline), (Origin.SEARCH, Deployment.model_validate(winner))):
        trial = session.store.add_trial(study, params, deployment, origin)
        session.store.start_attempt(study, trial.number, "me")
        session.store.finish_trial(study, trial.number, TrialOutcome.FEASIBLE, result=measured)
    session.store.recommend(study, Recommendation(trial=1, verified=False, pairs=0))
    return study


WINNERS: dict[str, tuple[dict[str, Any], str | None, str]] = {
    "plain": ({"decode": {"engine": ENGINE}}, "energyopt serve toy", ""),
    "replicas": ({"decode": {"engine": ENGINE, "replicas": 3}}, None, "energyopt router"),
    "pools": ({"decode": {"engine": ENGINE}, "prefill": {"engine": ENGINE}}, "--prefill 1 --decode 1", ""),
    "other pools": (
        {"decode": {"engine": ENGINE}, "prefill": {"engine": {**ENGINE, "max_num_seqs": 2}}},
        None,
        "other engines or limits",
    ),
    "experts": ({"decode": {"engine": {**ENGINE, "layout": {"tp": 2, "ep": 2}}}}, "--enable-expert-parallel", ""),
    "some experts": ({"decode": {"engine": {**ENGINE, "layout": {"tp": 4, "ep": 2}}}}, None, "layout.ep = 2"),
    "speculation": ({"decode": {"engine": {**ENGINE, "speculative_config": {}}}}, "--speculative-config", ""),
    "sleep": ({"decode": {"engine": {**ENGINE, "idle_sleep": 60}}}, "--idle-sleep 60.0", ""),
    "hand-over": ({"decode": {"engine": {**ENGINE, "kv_transfer": {}}}}, "--kv-transfer shm", ""),
}


@pytest.mark.parametrize("name", WINNERS)
def test_every_valid_winner_has_a_command_or_a_reason(session: Session, name: str) -> None:
    winner, shell, remark = WINNERS[name]
    study = won(session, winner)
    found = launch_command(session, study)
    assert found is not None
    assert (found.shell is None) == (shell is None)
    assert (shell or "") in (found.shell or "")
    assert remark in found.remark
    assert found.shell or found.remark


@pytest.mark.parametrize("name", ["plain", "replicas"])
def test_a_winner_without_a_command_has_its_artifacts_all_the_same(session: Session, name: str) -> None:
    winner, shell, _ = WINNERS[name]
    study = won(session, winner)
    found = launch_command(session, study)
    assert found is not None
    write_artifacts(session, study)
    assert {one.name for one in session.store.artifacts(study)} == {
        *("report.html", "pareto.png", "history.png", "manifest.json")
    }
    page = (session.artifacts / study / "report.html").read_text(encoding="utf-8")
    assert (found.remark in page) if shell is None else ("<pre>energyopt serve toy" in page)
    document = json.loads(json.dumps(summary_json(session, study), default=str))
    assert document["command"] == found.shell


@pytest.mark.parametrize(
    ("choice", "begins", "remark"),
    [
        ({"kind": "vllm"}, "vllm serve toy", "no name of a public registry"),
        ({"kind": "sglang"}, "python -m sglang.launch_server --model-path toy", ""),
        ({"kind": "simulator", "hardware": "h100"}, "energyopt serve toy", ""),
        (
            {"kind": "endpoint", "url": "http://h:1", "devices": ("GPU-a",)},
            "energyopt cap set 200W --device GPU-a",
            "h:1",
        ),
    ],
)
def test_the_command_is_of_the_engine_that_was_measured(
    session: Session, choice: dict[str, object], begins: str, remark: str
) -> None:
    found = launch_command(session, won(session, {"decode": {"engine": ENGINE, "power": {"cap": 200.0}}}, **choice))
    assert found is not None
    assert (found.shell or "").startswith(begins)
    assert remark in found.remark


def test_a_replay_is_served_as_what_was_recorded(session: Session) -> None:
    source = won(session, {"decode": {"engine": ENGINE}}, kind="vllm")
    found = launch_command(session, won(session, {"decode": {"engine": ENGINE}}, kind="replay", study=source))
    assert found is not None
    assert (found.shell or "").startswith("vllm serve")
