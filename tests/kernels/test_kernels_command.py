"""``energyopt kernels`` on a machine without a GPU; in this folder because checking interprets kernels."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("triton", reason="the kernels need triton")

import typer
from typer.testing import CliRunner

from energyopt.cli import kernels as command
from energyopt.cli.kernels import share_done, tuned_cells, words
from energyopt.compose.kernel_check import CheckProgress, check_kernels
from energyopt.core.errors import ConfigError
from kernels.cases.measuring import Row
from kernels.choices import Plan, Problem, Shape
from kernels.table import Entry
from kernels.tuning.tuner import Progress

FEW = ["rms_norm", "swiglu"]


def application() -> typer.Typer:
    app = typer.Typer()
    app.command("check")(command.check)
    app.command("tune")(command.tune)
    return app


def test_checks_in_the_interpreter_and_says_so() -> None:
    seen: list[CheckProgress] = []
    report = check_kernels(FEW, seen.append)
    assert report.ok
    assert [row.name for row in report.rows] == [state.name.split()[0] for state in seen] == FEW
    assert all(row.error is not None and row.seconds is None and row.share is None for row in report.rows)
    assert report.ceilings is None
    assert "interpreted on the CPU" in report.how


def test_prints_a_table_or_a_document() -> None:
    printed = CliRunner().invoke(application(), ["check", "--only", "rms_norm"])
    assert printed.exit_code == 0, printed.output
    assert "rms_norm" in printed.stdout
    assert "interpreted on the CPU" in printed.stdout
    assert "every kernel is within its bounds" in printed.stdout
    document = json.loads(CliRunner().invoke(application(), ["check", "--only", "rms_norm", "--json"]).stdout)
    assert document["ok"] is True
    assert document["rows"][0]["dtype"] == "float16"
    assert document["rows"][0]["seconds"] is None


def test_a_kernel_that_errs_ends_with_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Row("rms_norm", "float16", error=0.5, ok=False)
    monkeypatch.setattr("kernels.cases.measuring.check", lambda case, dtype, place: wrong)
    printed = CliRunner().invoke(application(), ["check", "--only", "rms_norm"])
    assert printed.exit_code == 1
    assert "1 of 1 are not" in printed.stdout
    assert "missed" in printed.stdout


def test_unknown_names_and_an_import_that_came_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="No kernel has a use named sort; known are"):
        check_kernels(["sort"], lambda state: None)
    monkeypatch.setattr("triton.knobs.runtime.interpret", False)
    with pytest.raises(ConfigError, match="TRITON_INTERPRET=1"):
        check_kernels(FEW, lambda state: None)


def test_tuning_without_a_gpu_says_what_runs_here() -> None:
    failed = CliRunner().invoke(application(), ["tune"])
    assert isinstance(failed.exception, ConfigError)
    assert "energyopt kernels check" in str(failed.exception)


def test_a_line_of_the_table_and_of_the_progress() -> None:
    entry = Entry(
        op="paged_decode", heads=32, kv_heads=8, width=128, dtype="bfloat16", rows=64, length=8192,
        plan=Plan(16, 64, 4, 3, 4).as_dict(), seconds=9e-4, joules=0.4, default_seconds=1e-3, default_joules=0.5,
        tried=20, failed=1,
    )  # fmt: skip
    assert tuned_cells(entry) == (
        "paged_decode 32/8x128 bfloat16, 64 rows x 8192", "16 x 64, 4 warps, 3 stages in 4 parts", "900 µs", "10.0%",
        "400 mJ", "20.0%",
    )  # fmt: skip
    assert tuned_cells(entry.model_copy(update={"joules": None}))[4:] == ("—", "—")
    problem = Problem("mla_decode", Shape(128, 0, 576, "bfloat16"), 1, 1024)
    state = Progress(3, 10, problem, "measuring", 5, 10)
    assert words(state) == "mla_decode 128x576 bfloat16, 1 rows x 1024: measuring, 6 of 10 (3 of 10 done)"
    assert share_done(state) == pytest.approx(0.365)
