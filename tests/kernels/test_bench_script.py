"""The prepared GPU script runs through on a CPU, so that a borrowed GPU is not spent on its mistakes."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

PATH = Path(__file__).parents[1] / "bench" / "kernels.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_kernels", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_dry_run_writes_both_reports_and_claims_nothing(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["--dry", "--only", "rms_norm", "paged_prefill", "--out", str(tmp_path)]) == 0
    (document,) = (json.loads(file.read_text()) for file in tmp_path.glob("*.json"))
    names = [row["name"] for row in document["results"]]
    assert names == [
        "paged_prefill", "paged_prefill", "paged_prefill beside torch flash", "decode step, batch 1",
        "decode step, batch 2", "rms_norm", "rms_norm",
    ]  # fmt: skip
    assert all(row["goal"] is None for row in document["results"])
    assert "figures mean nothing" in document["device"]
    (page,) = tmp_path.glob("kernels-dry-*.md")
    assert "| decode step, batch 1 | float32 |" in page.read_text()
    assert "no energy counter" in page.read_text()
    assert "rms_norm float16: error" in capsys.readouterr().out


def test_without_a_gpu_nothing_is_measured(script: ModuleType, tmp_path: Path) -> None:
    assert script.main(["--out", str(tmp_path)]) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_missed_goal_ends_with_code_1(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(case: Any, dtype: torch.dtype, place: Any) -> Any:
        return script.Row(case.name, "float16", error=1.0, ok=False)

    monkeypatch.setattr(script, "check", wrong)
    assert script.main(["--dry", "--no-step", "--only", "rms_norm", "--out", str(tmp_path)]) == 1
    assert "missed: rms_norm float16: error 1.0e+00" in capsys.readouterr().out


def test_a_use_that_fails_and_one_without_time_are_lines_of_the_report(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(case: Any, dtype: torch.dtype, place: Any) -> Any:
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(script, "check", failing)
    assert script.main(["--dry", "--no-step", "--only", "rms_norm", "swiglu", "--out", str(tmp_path)]) == 1
    (page,) = tmp_path.glob("*.md")
    assert page.read_text().count("missed RuntimeError: no kernel image") == 2
    late = dataclasses.replace(script.open_session(True), deadline=0.0)
    (row,) = script.rows_of_use(late, None, *next(iter(late.place.uses(["rms_norm"]))))
    assert (row.ok, row.note) == (False, "not run: the budget of seconds is used up")


def test_joules_have_their_error(script: ModuleType) -> None:
    assert script.joules_per_token(3000.0, 5.0, 1000) == "3.0000 ± 0.1200 J/token (NVML counter, 5.0 s)"


def test_energy_of_a_window_is_what_the_counter_moved_by(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    session = script.open_session(True)
    readings = iter((100.0, 160.0))
    monkeypatch.setattr(session.counter, "joules", lambda: next(readings))
    seconds, joules, runs = script.windowed(lambda: None, session)
    assert (joules, runs) == (60.0, 1)
    assert seconds >= 0
