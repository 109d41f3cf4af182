"""Study files: what is understood, what is refused and in which words, and what a revision keeps."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from energyopt.compose import engine_devices, study_files
from energyopt.compose.results import Session, open_session
from energyopt.compose.study_files import REVISION_OF, plan_file, read_study_file, revise
from energyopt.core.clock import FakeClock
from energyopt.core.errors import ConfigError, SensorUnavailableError, SloError, UsageError
from energyopt.core.study import Knob, Origin, StudyState, TrialState
from energyopt.core.units import Watts
from tuner.defaults import PowerRange
from tuner.evaluators.choice import EvaluatorChoice
from tuner.fake import FakeEvaluator
from tuner.fake_study import FakePowerController
from tuner.loop import StudyRunner
from tuner.study_file import StudyFile, full_path, study_schema

YAML = """
model: toy
evaluator: {kind: simulator, hardware: h100}
baseline: {engine: {max_num_seqs: 16}}
knobs:
  max_num_seqs: [8, 16, 32]
  tiers: [none, "host:1GiB"]
  tier_load: {values: [always, faster], when: {tiers: ["host:1GiB"]}}
slos: [ttft:p90<1500ms]
budget: {trials: 5, time: 30min, joules: 5e6, verify_pairs: 1}
measure: {warmup: 1s, window: 5, settle: 0}
meter: none
"""
TOML = """
model = "toy"
slos = ["ttft:p90<1500ms"]
[evaluator]
kind = "simulator"
hardware = "h100"
[baseline.engine]
max_num_seqs = 16
[knobs]
max_num_seqs = [8, 16, 32]
[budget]
time = "30min"
"""


def written(folder: Path, text: str, name: str = "study.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_yaml_becomes_a_study(tmp_path: Path) -> None:
    planned = plan_file(read_study_file(written(tmp_path, YAML)))
    spec = planned.spec
    assert spec.space.knobs[0] == Knob(path="decode.engine.max_num_seqs", values=(8, 16, 32))
    assert [knob.ordinal for knob in spec.space.knobs] == [True, False, False]
    assert planned.valid_points == 3 * 3
    assert (spec.budget.trials, spec.budget.seconds, spec.budget.joules) == (5, 1800.0, 5e6)
    assert (spec.plan.window, spec.plan.settle) == (5.0, 0.0)
    assert spec.maximize == "tokens_per_joule"
    assert json.loads(planned.machine["evaluator"]) == {"kind": "simulator", "hardware": "h100"}


def test_toml_and_json_are_the_same_form(tmp_path: Path) -> None:
    toml = read_study_file(written(tmp_path, TOML, "study.toml"))
    as_json = read_study_file(written(tmp_path, toml.model_dump_json(), "study.json"))
    assert toml == as_json
    assert toml.budget.time == 1800.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: toy", "'slos' is missing"),
        ("[1, 2]", "holds no mapping"),
        ("model: toy\nslos: [ttft:p90<1s]\ntrials: 3", "Unknown key 'trials'"),
        ("model: toy\nslos: [ttft:p90<1s]\nknobs: {speed: [1]}", "'speed' is no knob"),
        ("model: toy\nslos: [ttft:p90<1s]\nevaluator: {kind: endpoint}", "needs url"),
        ("model: toy\nslos: [ttft:p90<1s]\nbaseline: {engine: {max_seqs: 1}}", "baseline: Unknown key"),
        ("model: &m toy\nname: *m", "aliases"),
        ("model: [", "is no yaml"),
        ("model: !!python/object/apply:os.getcwd []", "is no yaml"),
    ],
)
def test_what_is_wrong_is_said_in_words(tmp_path: Path, text: str, message: str) -> None:
    simulated = text + "\nevaluator: {kind: simulator, hardware: h100}" if "evaluator" not in text else text
    path = written(tmp_path, simulated if text.startswith("model: toy") else text)
    with pytest.raises(ConfigError, match=message):
        plan_file(read_study_file(path))


def test_an_slo_that_does_not_parse_and_a_file_that_is_too_large_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SloError):
        plan_file(read_study_file(written(tmp_path, YAML.replace("1500ms", "soon"))))
    with pytest.raises(ConfigError, match="larger than"):
        read_study_file(written(tmp_path, "#" * (2**20 + 1)))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_study_file(tmp_path / "absent.yaml")


def test_the_schema_accepts_what_the_program_accepts(tmp_path: Path) -> None:
    validator = jsonschema_rs.validator_for(study_schema())
    good = json.loads(read_study_file(written(tmp_path, YAML)).model_dump_json())
    assert validator.is_valid(good)
    assert validator.is_valid({"model": "toy", "slos": ["ttft:p90<1s"], "budget": {"time": "30min"}})
    assert not validator.is_valid({**good, "trials": 3})
    assert not validator.is_valid({key: value for key, value in good.items() if key != "slos"})


def test_a_name_that_fits_several_knobs_names_them() -> None:
    assert full_path("max_num_seqs") == "decode.engine.max_num_seqs"
    assert full_path("prefill.engine.max_num_seqs") == "prefill.engine.max_num_seqs"
    with pytest.raises(ConfigError, match="is no knob"):
        full_path("engine")


def finished(session: Session, file: StudyFile) -> str:
    study_id = session.store.create_study(plan_file(file).spec, plan_file(file).machine).id
    clock = FakeClock()
    StudyRunner(session.store, FakeEvaluator(clock), FakePowerController(), clock, "me").run(study_id)
    return study_id


def test_a_revision_keeps_the_trials_that_still_fit(tmp_path: Path) -> None:
    session = open_session(f"sqlite:///{tmp_path / 'db'}", tmp_path / "out")
    file = read_study_file(written(tmp_path, YAML.replace("[none, \"host:1GiB\"]", "[none]").replace(
        ', when: {tiers: ["host:1GiB"]}', "")))  # fmt: skip
    old = finished(session, file)
    wider = file.model_copy(update={"knobs": {"max_num_seqs": (4, 8, 16), "block_tokens": (16, 32)}})
    found = revise(session, old, plan_file(wider))
    trials = session.store.trials(found.study.id)
    measured = [t for t in session.store.trials(old) if not t.origin.verifies]
    expected = [t for t in measured if t.deployment.decode.engine.max_num_seqs != 32
                and t.deployment.decode.engine.kv.tier_load == "always"]  # fmt: skip
    assert [t.result for t in trials] == [t.result for t in expected]
    assert (found.reused, found.measured) == (len(expected), len(measured))
    assert 1 <= found.reused < found.measured
    assert trials[0].origin is Origin.BASELINE
    assert all(trial.state is TrialState.DONE for trial in trials)
    assert found.study.machine[REVISION_OF] == old
    clock = FakeClock()
    StudyRunner(session.store, FakeEvaluator(clock), FakePowerController(), clock, "me").run(found.study.id)
    assert session.store.study(found.study.id).state is StudyState.SUCCEEDED


def test_a_revision_asks_the_same_question(tmp_path: Path) -> None:
    session = open_session(f"sqlite:///{tmp_path / 'db'}", tmp_path / "out")
    file = read_study_file(written(tmp_path, YAML))
    study = session.store.create_study(plan_file(file).spec, plan_file(file).machine).id
    other = plan_file(file.model_copy(update={"slos": ("ttft:p90<1s",)}))
    with pytest.raises(ConfigError, match="slos differs from study"):
        revise(session, study, other)
    lower = plan_file(file.model_copy(update={"baseline": {"engine": {"max_num_seqs": 8}}}))
    with pytest.raises(ConfigError, match="baseline differs from study"):
        revise(session, study, lower)
    revise(session, study, plan_file(file))
    assert session.store.study(study).state is StudyState.CANCELLED


@pytest.mark.parametrize("state", [StudyState.RUNNING, StudyState.VERIFYING, StudyState.PAUSING])
def test_a_study_that_is_worked_on_is_told_to_stop(tmp_path: Path, state: StudyState) -> None:
    session = open_session(f"sqlite:///{tmp_path / 'db'}", tmp_path / "out")
    planned = plan_file(read_study_file(written(tmp_path, YAML)))
    study = session.store.create_study(planned.spec, planned.machine).id
    session.store.set_state(study, state)
    revise(session, study, planned)
    assert session.store.study(study).state is StudyState.CANCELLING


def test_trials_of_another_machine_say_nothing_here(tmp_path: Path) -> None:
    session = open_session(f"sqlite:///{tmp_path / 'db'}", tmp_path / "out")
    file = read_study_file(written(tmp_path, YAML))
    changes = {"evaluator": EvaluatorChoice(kind="vllm"), "knobs": {"max_num_seqs": (8, 16)}}
    served = plan_file(file.model_copy(update=changes))
    study = session.store.create_study(served.spec, {**served.machine, "cpu": "another"}).id
    with pytest.raises(ConfigError, match=r"machine \(cpu\) differs"):
        revise(session, study, served)
    simulated = plan_file(file)
    anywhere = session.store.create_study(simulated.spec, {**simulated.machine, "cpu": "another"}).id
    assert revise(session, anywhere, simulated).reused == 0


def test_a_knob_that_the_engine_cannot_be_told_is_refused(tmp_path: Path) -> None:
    """Its values would be one and the same launch, measured several times as if they differed."""
    file = read_study_file(written(tmp_path, YAML))
    knobs = {"max_num_seqs": (8, 16, 32), "tier_load": ("always", "faster")}
    vllm = file.model_copy(update={"evaluator": EvaluatorChoice(kind="vllm"), "meter": "none", "knobs": knobs})
    with pytest.raises(ConfigError, match=r"tier_load.*vllm cannot be told"):
        plan_file(vllm)
    usual = plan_file(vllm.model_copy(update={"knobs": {}}))
    assert "decode.engine.threads" not in [knob.path for knob in usual.spec.space.knobs]
    assert "decode.engine.max_num_seqs" in [knob.path for knob in usual.spec.space.knobs]


def test_a_driver_that_tells_of_no_gpu_leaves_limits_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_found(named: tuple[str, ...]) -> tuple[str, ...]:
        raise UsageError("No GPU was found to cap.")

    monkeypatch.setattr(engine_devices, "_has_gpus", lambda: True)
    monkeypatch.setattr(engine_devices, "machine_gpus", none_found)
    file = read_study_file(written(tmp_path, YAML)).model_copy(update={"knobs": {}, "meter": "auto"})
    served = EvaluatorChoice(kind="endpoint", url="http://127.0.0.1:9")
    for choice in (served, EvaluatorChoice(kind="vllm")):
        planned = plan_file(file.model_copy(update={"evaluator": choice}))
        assert planned.spec.maximize == "output_rate"
        assert not any(".power." in knob.path for knob in planned.spec.space.knobs)
        assert planned.most_joules is None
        assert any("Power limits are left alone" in note for note in planned.meter_notes)
    with pytest.raises(SensorUnavailableError, match="tells of none"):
        plan_file(file.model_copy(update={"evaluator": served, "meter": "nvml"}))


def test_a_file_says_what_its_devices_take_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_files, "identities", lambda choice, deployment, clock: ("GPU-a",))
    limits = PowerRange(Watts(200.0), Watts(700.0), Watts(700.0))
    monkeypatch.setattr(study_files, "power_range", lambda devices: limits)
    monkeypatch.setattr(study_files, "highest_clock", lambda devices: None)
    file = read_study_file(written(tmp_path, YAML))
    assert plan_file(file).most_joules is None, "nothing of this host is used by a simulator"
    vllm = file.model_copy(update={"evaluator": EvaluatorChoice(kind="vllm"), "meter": "none"})
    planned = plan_file(vllm.model_copy(update={"knobs": {"max_num_seqs": (8, 16, 32)}}))
    assert planned.most_joules == pytest.approx(700.0 * planned.expected_seconds)
    wide = plan_file(vllm.model_copy(update={"knobs": {"layout": ("tp1", "tp4")}}))
    assert wide.most_joules == pytest.approx(4 * 700.0 * wide.expected_seconds), "the largest layout counts"


PIECES = st.sampled_from(
    [
        "model",
        "slos",
        "knobs",
        "baseline",
        "evaluator",
        ": ",
        "- ",
        "\n  ",
        "[",
        "]",
        "{",
        "}",
        "&a ",
        "*a",
        "!!python/x ",
        "|\n",
    ]
) | st.text(max_size=6)


@given(pieces=st.lists(PIECES, max_size=40), suffix=st.sampled_from(["yaml", "toml", "json"]))
@settings(max_examples=60, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_study_file_holds_it_is_read_or_refused(tmp_path: Path, pieces: list[str], suffix: str) -> None:
    path = tmp_path / f"any.{suffix}"
    path.write_text("".join(pieces), encoding="utf-8", errors="replace")
    with contextlib.suppress(ConfigError):
        read_study_file(path)


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        ("json", b"[" * 900_000),
        ("yaml", b"[" * 20_000),
        ("yaml", b"a: &a [x]\nb: *a\n"),
        ("toml", b"a = " + b"[" * 20_000),
        ("yaml", b"x" * (2**20 + 1)),
        ("json", b'{"model": 1e999999, "slos": []}'),
        ("yaml", b"\xff\xfe\x00"),
    ],
)
def test_a_study_file_that_means_harm_is_refused_soon(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"bad.{suffix}"
    path.write_bytes(content)
    begun = time.process_time()
    with pytest.raises(ConfigError):
        read_study_file(path)
    assert time.process_time() - begun < 5
