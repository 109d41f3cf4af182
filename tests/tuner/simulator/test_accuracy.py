"""The released constants against the published tables, and the arithmetic of the errors."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from energyopt.core.errors import ConfigError, NotFoundError
from tuner.simulator.accuracy import cap_sweep_accuracy, mlenergy_accuracy
from tuner.simulator.constants import Constants
from tuner.simulator.fit import fit
from tuner.simulator.mlenergy import Case, predict, read_rows, read_table
from tuner.simulator.report import accuracy_markdown
from tuner.simulator.score import score, spearman, summary

TABLE, SWEEP = "mlenergy_v3_llm.csv", "rtxpro6000_power_cap_sweep.csv"
KNOWN_ROWS = {
    "h100 dense": (0.035, 0.05),
    "b200 dense": (0.08, 0.07),
    "h100 moe": (0.11, 0.09),
    "b200 moe": (0.16, 0.15),
}
"""tok/s and J/token of the rows the constants were fitted on, with a little room: a change of the model shows here."""


def test_released_constants_are_as_good_as_when_they_were_released(tables: Path) -> None:
    document = mlenergy_accuracy(tables / TABLE)
    assert document["source"] == "simulated"
    for kind, (rate, joules) in KNOWN_ROWS.items():
        found = document["classes"][kind]
        assert found["tok_s_mape"] <= rate, kind
        assert found["j_per_token_mape"] <= joules, kind
    signs = document["signs"]
    assert signs["joules_sign_right"] == signs["pairs"]  # twice the GPUs at one batch cost more joules a token
    assert document["rows_used"] + sum(document["rows_removed"].values()) == 697


def test_two_anchors_bring_models_with_experts_near(tables: Path) -> None:
    document = mlenergy_accuracy(tables / TABLE, anchors=2)
    for kind, rate in (("h100 moe", 0.10), ("b200 moe", 0.15)):
        assert document["classes"][kind]["j_per_token_mape"] <= 0.12
        assert document["classes"][kind]["tok_s_mape"] <= rate
    assert document["rows_scored"] < document["rows_used"]


def test_an_unseen_family_is_predicted_without_its_rows(tables: Path) -> None:
    table = read_table(tables / TABLE)
    own = [case for case in table.cases if case.kind == "b200 dense"]
    unseen = [case for case in own if "405B" in case.family]
    start = Constants(gpu="b200", origin="prior", provenance="defaults")
    constants = fit([case for case in own if case not in unseen], start, provenance="test")
    found = summary(score(unseen, lambda case: predict(case, constants)))
    assert found["j_per_token_mape"] <= 0.12
    assert constants.origin == "fitted"


SMALL = ("Qwen/Qwen3-14B", "meta-llama/Llama-3.1-8B-Instruct")


def small(tables: Path, folder: Path) -> None:
    """Two series of the table and the sweep, which make the whole page in a second."""
    rows = read_rows(tables / TABLE)
    with (folder / TABLE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        wanted = ("H100", "lm-arena-chat")
        writer.writerows(row for row in rows if (row["gpu_model"], row["task"]) == wanted and row["model_id"] in SMALL)
    shutil.copy(tables / SWEEP, folder)


def test_the_page_has_the_same_bytes_in_every_process(tables: Path, tmp_path: Path) -> None:
    small(tables, tmp_path)
    script = "import sys, pathlib; from tuner.simulator.report import accuracy_markdown as page; "
    script += "sys.stdout.buffer.write(page(pathlib.Path(sys.argv[1])).encode())"
    environment = os.environ | {"PYTHONHASHSEED": "7", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-c", script, str(tmp_path)]
    other = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=120)
    page = accuracy_markdown(tmp_path)
    assert page.encode() == other.stdout
    assert "19 rows scored" in page
    assert "**In sample**: the constants of rtx-pro-6000" in page


def test_a_fit_does_not_turn_on_the_last_digits_of_what_it_is_given(tables: Path, tmp_path: Path) -> None:
    small(tables, tmp_path)
    cases = read_table(tmp_path / TABLE).cases
    start = Constants(gpu="h100", origin="prior", provenance="defaults")

    def fitted(rows: list[Case]) -> list[float]:
        constants = fit(rows, start, provenance="test")
        return [*constants.time.model_dump().values(), *constants.power.model_dump().values()]

    moved = [replace(case, rate=case.rate * (1 + 1e-7), watts=case.watts * (1 - 1e-7)) for case in cases]
    assert fitted(moved) == pytest.approx(fitted(list(cases)), rel=1e-3)


def test_every_row_of_the_cap_sweep_is_within_five_percent_and_the_best_cap_is_found(tables: Path) -> None:
    document = cap_sweep_accuracy(tables / SWEEP)
    for row in document["series"].values():
        assert row["tok_s_worst"] <= 0.05
        assert row["watts_worst"] <= 0.05
        assert row["best_cap_steps_off"] <= 1


def test_ranks_and_their_ties() -> None:
    assert spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert spearman([1, 2, 3], [30, 20, 10]) == pytest.approx(-1)
    assert spearman([1, 2, 2, 3], [1, 2, 2, 3]) == pytest.approx(1)
    assert spearman([1, 1, 1], [1, 2, 3]) == 0


def test_a_table_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("task,model_id\nlm-arena-chat,x\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="no column"):
        mlenergy_accuracy(path)
    with pytest.raises(ConfigError, match="no column"):
        cap_sweep_accuracy(path)
    with pytest.raises(NotFoundError, match="cannot be read"):
        mlenergy_accuracy(tmp_path / "absent.csv")
    path.write_text("task\nimage-chat\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="passes the filter"):
        mlenergy_accuracy(path)
    with pytest.raises(ConfigError, match="anchors = 1"):
        mlenergy_accuracy(path, anchors=1)
