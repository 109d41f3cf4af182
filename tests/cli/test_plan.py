"""``energyopt plan`` and ``energyopt accuracy`` as typed: tables, JSON, exit codes, and the word "simulated"."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from energyopt.cli.main import main

PLAN = ("plan", "llama-3.1-8b", "--gpu", "h100", "--gpus", "8", "--isl", "500", "--osl", "60", "--no-pools")
WHERE = {
    "kubernetes": ("spec", "replicas"),
    "dynamo": ("spec", "services", "VllmDecodeWorker", "replicas"),
    "llm-d": ("decode", "replicas"),
}
"""Where a manifest says how many engines there are."""
SLO = ("--slo", "ttft:p90<2s", "--slo", "tpot:p90<50ms")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of one command line."""
    monkeypatch.setattr(sys, "argv", ["energyopt", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_a_plan_is_a_front_a_recommendation_and_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *PLAN, "--gpu", "mi300x", *SLO) == 0
    out, err = capsys.readouterr()
    for piece in (
        "simulated",
        "vllm serve",
        "recommended",
        "prior",
        "fitted",
        "unverified",
        "same SLO",
        "carried over",
        "+25%",
        "x mi300x",
    ):
        assert piece in out
    assert "simulated" in err
    assert "Traceback" not in err


def test_a_plan_is_one_document_that_says_simulated_and_manifests_of_what_it_recommends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, *PLAN, *SLO, "--json", "--out", str(tmp_path)) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["source"] == "simulated"
    (plan,) = document["plans"]
    assert plan["recommendation"]["events"]["feasible"] is True
    assert plan["layouts_removed"]
    pool = plan["recommendation"]["decode"]
    for form in ("kubernetes", "dynamo", "llm-d"):
        text = (tmp_path / f"{form}-h100.yaml").read_text()
        assert text.startswith("# simulated")
        (found, *_) = yaml.safe_load_all(text)
        for step in WHERE[form]:
            found = found[step]
        assert found == pool["replicas"]


def test_nothing_feasible_is_exit_3_with_the_nearest_miss(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *PLAN, "--slo", "tpot:p90<100us") == 3
    out, err = capsys.readouterr()
    assert "Nearest misses" in out
    assert "misses tpot:p90" in " ".join(err.split())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("--gpu", "voodoo"), "No gpu is named"),
        (("--slo", "speed:p90<1s"), "unknown metric"),
        (("--cached", "2"), "cached"),
    ],
)
def test_wrong_usage_is_exit_2_and_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], change: tuple[str, str], says: str
) -> None:
    assert run(monkeypatch, *PLAN, *SLO, *change) == 2
    assert says in " ".join(capsys.readouterr().err.split())


def test_accuracy_scores_a_table_from_outside(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(__file__).parents[3] / "shared" / "data" / "energy"
    if not folder.is_dir():
        pytest.skip(f"the published tables are not at {folder}")
    sweep, table = folder / "rtxpro6000_power_cap_sweep.csv", folder / "mlenergy_v3_llm.csv"
    assert run(monkeypatch, "accuracy", "cap-sweep", str(sweep), "--json") == 0
    assert json.loads(capsys.readouterr().out)["summary"]["rows"] == 12
    assert run(monkeypatch, "accuracy", "mlenergy", str(table), "--anchors", "2", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["classes"]) == {"b200 dense", "b200 moe", "h100 dense", "h100 moe"}
    assert run(monkeypatch, "accuracy", "mlenergy", str(table)) == 0
    assert "h100 moe" in capsys.readouterr().out


def test_a_machine_is_calibrated_from_a_table_and_planned_with(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    runs, constants = tmp_path / "runs.csv", tmp_path / "constants.json"
    rows = ["model,tp,batch,prompt_tokens,output_tokens,tok_s,watts_per_gpu"]
    rows += [f"llama-3.1-8b,1,{batch},500,60,{90 * batch**0.7:.1f},{350 + batch}" for batch in (1, 8, 64)]
    runs.write_text("\n".join(rows), encoding="utf-8")
    assert run(monkeypatch, "calibrate", "--gpu", "h100", "--csv", str(runs), "--out", str(constants)) == 0
    assert "held out" in capsys.readouterr().out
    assert "runs.csv" in json.loads(constants.read_text(encoding="utf-8"))["provenance"]
    assert run(monkeypatch, *PLAN, *SLO, "--constants", str(constants), "--json") == 0
    assert "calibrated on 3 runs" in json.loads(capsys.readouterr().out)["plans"][0]["provenance"]
    assert run(monkeypatch, "calibrate", "--gpu", "h100") == 2
    assert "either --csv or --study" in " ".join(capsys.readouterr().err.split())
