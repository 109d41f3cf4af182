"""Tables are begun, continued and finished around the search; the device is a formula."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from energyopt.compose.kernel_tune import NO_GPU, TuneReport, TuneRequest, model_shape, rank_shape, search, tune_kernels
from energyopt.core.clock import FakeClock
from energyopt.core.errors import ConfigError
from engine.operators import table_path
from kernels.platform import arch_named
from kernels.table import Device, choices_of, read_table
from kernels.tuning.fake import FakeBench
from kernels.tuning.problems import ModelShape, problems_of
from kernels.tuning.space import permits

HERE = Device(device="NVIDIA H200", architecture="sm_90", driver="580.1", triton="3.9.0")
ALL = problems_of(ModelShape(), "bfloat16")


def run(path: Path, bench: FakeBench | None = None, here: Device = HERE, **changes: Any) -> TuneReport:
    request = dataclasses.replace(TuneRequest(environ={"XDG_DATA_HOME": str(path)}, seconds=0.5), **changes)
    return search(bench or FakeBench(), request, here, ModelShape(), "bfloat16", FakeClock(), lambda state: None)


def test_writes_the_table_that_the_engine_loads(tmp_path: Path) -> None:
    report = run(tmp_path)
    assert report.path == table_path(HERE, {"XDG_DATA_HOME": str(tmp_path)})
    table = read_table(report.path)
    assert table == report.table
    assert table.complete
    assert table.objective == "energy"
    assert [entry.problem for entry in table.entries] == ALL
    choices = choices_of(table, lambda problem, plan: permits(arch_named("sm_90"), problem, plan))
    assert len(choices) == len(ALL)
    document = json.loads(json.dumps(report.document()))
    assert document["table"]["measured"]["driver"] == "580.1"
    assert all(e["energy"]["source"] == "simulated" and e["energy"]["error"] >= 0 for e in document["table"]["entries"])


def test_an_interrupted_run_leaves_a_table_and_the_next_one_finishes_it(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, FakeBench(interrupt_after=40))
    path = table_path(HERE, {"XDG_DATA_HOME": str(tmp_path)})
    half = read_table(path)
    assert not half.complete
    assert 0 < len(half.entries) < len(ALL)
    bench = FakeBench()
    whole = run(tmp_path, bench).table
    assert whole.complete
    assert whole.entries[: len(half.entries)] == half.entries
    assert len(whole.entries) == len(ALL)
    again = FakeBench()
    assert run(tmp_path, again).table == whole
    assert again.checked == []
    assert run(tmp_path, again, fresh=True).table == whole
    assert again.checked != []


def test_without_a_sensor_the_table_says_that_it_is_for_time(tmp_path: Path) -> None:
    table = run(tmp_path, FakeBench(joules=False)).table
    assert table.objective == "time"
    assert all(entry.energy is None and entry.default_energy is None for entry in table.entries)


def test_refuses_to_go_on_with_another_table(tmp_path: Path) -> None:
    out = tmp_path / "table.json"
    run(tmp_path, out=out)
    with pytest.raises(ConfigError, match=r"for energy, not time\. --fresh begins a new one"):
        run(tmp_path, out=out, objective="time")
    with pytest.raises(ConfigError, match="of another machine"):
        run(tmp_path, here=HERE.model_copy(update={"device": "NVIDIA A100"}), out=out)
    out.write_text("[]")
    with pytest.raises(ConfigError, match=r"no table of kernels.*--fresh"):
        run(tmp_path, out=out)
    with pytest.raises(ConfigError, match="cannot be written"):
        run(tmp_path, out=out / "below.json")


def test_what_cannot_be_measured_is_reported(tmp_path: Path) -> None:
    broken = FakeBench().candidates(ALL[0])[0]
    report = run(tmp_path, FakeBench(broken={broken}))
    assert ALL[0] in [one.problem for one in report.skipped]
    assert not report.table.complete
    assert not read_table(report.path).complete
    assert len(report.table.entries) + len(report.skipped) == len(ALL)


def test_plans_that_fail_are_told_with_their_reasons(tmp_path: Path) -> None:
    bad = FakeBench().candidates(ALL[0])[1]
    report = run(tmp_path, FakeBench(broken={bad}))
    assert report.table.complete
    assert report.document()["failed"] == [
        {"problem": str(problem), "plan": str(bad), "reason": f"The plan {bad} does not compile: out of shared memory."}
        for problem in ALL
        if bad in FakeBench().candidates(problem)
    ]
    assert sum(entry.failed for entry in report.table.entries) == len(report.failures) > 0


def test_a_rank_has_its_share_of_the_heads() -> None:
    assert ModelShape(32, 8).of_rank(4) == ModelShape(8, 2)
    assert ModelShape(32, 8).of_rank(16) == ModelShape(2, 1)
    assert ModelShape(128, 0, 576).of_rank(8) == ModelShape(16, 0, 576)
    assert rank_shape(TuneRequest(tensor_parallel_size=2)) == ModelShape(16, 4)
    with pytest.raises(ConfigError, match="32 heads over 8 key heads cannot be split over 3 ranks"):
        rank_shape(TuneRequest(tensor_parallel_size=3))


def test_a_machine_without_a_gpu_says_what_runs_there() -> None:
    with pytest.raises(ConfigError, match="energyopt kernels check"):
        tune_kernels(TuneRequest(), lambda state: None)
    assert "no GPU" in NO_GPU


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"num_attention_heads": 32, "hidden_size": 4096, "num_key_value_heads": 8}, ModelShape()),
        ({"num_attention_heads": 9, "hidden_size": 576}, ModelShape(9, 9, 64, 576)),
        (
            {"text_config": {"num_attention_heads": 64, "hidden_size": 2880, "num_key_value_heads": 8, "head_dim": 64,
                             "sliding_window": 128}},
            ModelShape(64, 8, 64, 2880, 128),
        ),
        (
            {"num_attention_heads": 128, "hidden_size": 7168, "kv_lora_rank": 512, "qk_rope_head_dim": 64},
            ModelShape(128, 0, 576, 7168),
        ),
    ],
)  # fmt: skip
def test_reads_the_shape_of_a_model(config: dict[str, object], expected: ModelShape, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_shape(tmp_path) == expected
    assert model_shape(None) == ModelShape()


@pytest.mark.parametrize("config", [{}, {"num_attention_heads": "8", "hidden_size": 64}, {"num_attention_heads": -1}])
def test_refuses_a_model_that_does_not_tell_its_shape(config: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"config\.json has num_attention_heads = .*; expected a whole number"):
        model_shape(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        model_shape(tmp_path / "none")
