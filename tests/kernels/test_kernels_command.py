"""``energyopt kernels`` on a machine without a GPU; in this folder because checking interprets kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the kernels need triton")

import torch
import typer
from typer.testing import CliRunner

from energyopt.cli import kernels as command
from energyopt.cli.kernels import left_out, share_done, tuned_cells, words
from energyopt.compose.kernel_check import CheckProgress, check_kernels
from energyopt.compose.kernel_tune import TuneReport
from energyopt.core.errors import ConfigError
from kernels.cases import measuring
from kernels.cases.measuring import Row
from kernels.cases.work import Case
from kernels.choices import Plan, Problem, Shape
from kernels.table import Device, Entry, EntryEnergy, Table
from kernels.tuning.tuner import Failure, Progress, Skipped

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


def test_a_use_that_fails_is_told_and_the_others_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    real = measuring.check

    def failing(case: Case, dtype: torch.dtype, place: measuring.Place) -> Row:
        if case.name == "rms_norm":
            raise RuntimeError("out of resource:\n shared memory")
        return real(case, dtype, place)

    monkeypatch.setattr(measuring, "check", failing)
    printed = CliRunner().invoke(application(), ["check", *(f"--only={name}" for name in FEW)])
    assert printed.exit_code == 1
    assert "rms_norm float16: RuntimeError: out of resource: shared memory" in printed.stdout
    assert "1 of 2 are not" in printed.stdout
    assert [line.split()[:2] for line in printed.stdout.splitlines() if "swiglu" in line] == [["swiglu", "float16"]]


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
        plan=Plan(16, 64, 4, 3, 4).as_dict(), seconds=9e-4, default_seconds=1e-3, tried=20, failed=1,
        energy=EntryEnergy(joules=0.4, error=0.01, source="counter"),
        default_energy=EntryEnergy(joules=0.5, error=0.01, source="counter"),
    )  # fmt: skip
    assert tuned_cells(entry) == (
        "paged_decode 32/8x128 bfloat16, 64 rows x 8192", "16 x 64, 4 warps, 3 stages in 4 parts", "900 µs", "10.0%",
        "400 mJ ± 2.5%", "20.0%", "counter",
    )  # fmt: skip
    assert tuned_cells(entry.model_copy(update={"energy": None}))[4:] == ("—", "—", "—")
    problem = Problem("mla_decode", Shape(128, 0, 576, "bfloat16"), 1, 1024)
    state = Progress(3, 10, problem, "measuring", 5, 10)
    assert words(state) == "mla_decode 128x576 bfloat16, 1 row x 1024: measuring, 6 of 10 (3 of 10 done)"
    assert share_done(state) == pytest.approx(0.365)


def test_what_was_left_out_is_told_reason_by_reason() -> None:
    here = Device(device="H200", architecture="sm_90", driver="1", triton="3.9.0")
    table = Table(measured=here, objective="time", date="2026-11-30", complete=False)
    problem, plans = (
        Problem("mla_decode", Shape(128, 0, 576, "bfloat16"), 1, 1024),
        [Plan(16, 16, 8, n) for n in (1, 2)],
    )
    failures = [(problem, Failure(plan, f"The plan {plan} does not run: out of shared memory")) for plan in plans]
    others = [(problem, Failure(plans[0], f"reason {n}")) for n in range(6)]
    report = TuneReport(Path("t"), table, (Skipped(problem, "no room"),), (*failures, *others), ())
    lines = left_out(report)
    assert lines[0] == f"not measured: {problem}: no room"
    assert lines[1] == "2 of the plans tried: The plan ... does not run: out of shared memory"
    assert lines[-1] == "2 more reasons: --json lists every plan that failed"
