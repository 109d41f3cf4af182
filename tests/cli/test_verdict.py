"""What a person reads at the end: a saving with its interval, a loss called a loss, joules with source and error."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from energyopt.cli.tables import joules_from, plot_pareto, result_table, settings
from energyopt.cli.verdict import verdict
from energyopt.core.clock import FakeClock
from energyopt.core.study import Recommendation
from energyopt.store.memory import MemoryStudyStore
from tuner.fake import FakeEvaluator
from tuner.fake_study import FakePowerController, toy_spec
from tuner.loop import StudyRunner
from tuner.summary import StudySummary, summarize_study


@pytest.fixture(scope="module")
def summary() -> StudySummary:
    clock = FakeClock()
    store = MemoryStudyStore(clock)
    study = store.create_study(toy_spec(trials=10, pairs=3), {})
    StudyRunner(store, FakeEvaluator(clock), FakePowerController(), clock, "test").run(study.id)
    return summarize_study(store.study(study.id), store.trials(study.id))


def recommending(summary: StudySummary, saving: float) -> StudySummary:
    found = Recommendation(
        trial=99, verified=saving > 0, pairs=3, saving=saving, saving_low=saving - 0.02, saving_high=saving + 0.02
    )
    return replace(summary, recommendation=found)


def test_a_saving_comes_with_its_interval(summary: StudySummary) -> None:
    text = verdict(recommending(summary, 0.125), [])
    assert "uses 12.5 % less energy per token" in text
    assert "10.5 % to 14.5 %" in text
    assert "verified" in text


def test_a_loss_is_called_a_loss(summary: StudySummary) -> None:
    text = verdict(recommending(summary, -0.05), [])
    assert "uses 5.0 % MORE energy per token" in text
    assert "NOT verified" in text


def test_joules_carry_source_and_error(summary: StudySummary) -> None:
    row = summary.rows[0]
    assert row.energy_source is not None
    assert joules_from(replace(row, energy_source="estimated", energy_error=0.5)) == "estimated ±50%"
    assert joules_from(replace(row, energy_source=None, energy_error=None)) == "not measured"


def test_the_result_table_fits_a_terminal_of_eighty(summary: StudySummary) -> None:
    rows = [replace(row, energy_source="estimated", energy_error=0.5, output_rate=98765.0) for row in summary.rows]
    wide = replace(summary, baseline=rows[0], best=rows[1], front=tuple(rows[1:3]))
    page = StringIO()
    Console(file=page, width=80).print(result_table(wide))
    assert "98,765" in page.getvalue()
    assert "estimated" in page.getvalue().split("\n", 3)[3]
    assert "±50%" in page.getvalue()
    assert "…" not in page.getvalue()


def test_settings_show_what_differs(summary: StudySummary) -> None:
    usual = {"decode.engine.max_num_seqs": 64, "decode.engine.kv.prefix_caching": True, "decode.engine.threads": None}
    assert settings(usual, usual) == "as baseline"
    changed = usual | {"decode.engine.kv.prefix_caching": False, "decode.engine.threads": 1}
    assert settings(changed, usual) == "cache=off threads=1"


def test_the_key_of_the_plot_covers_no_trial(summary: StudySummary) -> None:
    """The best trial is where a key inside the plot would be: up and to the left."""
    corner = [replace(summary.rows[0], feasible=True, on_front=True, tokens_per_joule=9.0, tpot_p90=0.2)]
    rest = [
        replace(summary.rows[1], feasible=False, on_front=False, tokens_per_joule=1.0, tpot_p90=seconds)
        for seconds in (0.1, 1.0)
    ]
    page = StringIO()
    console = Console(file=page, width=80)
    plot_pareto(console, replace(summary, rows=tuple(corner + rest), baseline=corner[0], best=corner[0]))
    plot, key = page.getvalue().rstrip("\n").rsplit("\n", 1)
    assert plot.count("*") == 1
    assert plot.count("x") == 2
    assert key.split("   ") == ["x misses an SLO", "# Pareto set", "B baseline", "* best"]
