"""What the report says in words about a study that keeps its baseline, and about one that does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from energyopt.compose.results import Launching
from energyopt.core.clock import FakeClock
from energyopt.core.study import Recommendation
from energyopt.store.memory import MemoryStudyStore
from tuner.export.report import report_html
from tuner.fake import FakeEvaluator
from tuner.fake_study import FakePowerController, toy_spec
from tuner.loop import StudyRunner
from tuner.summary import StudySummary, summarize_study


@pytest.fixture(scope="module")
def summary() -> StudySummary:
    clock = FakeClock()
    store = MemoryStudyStore(clock)
    study = store.create_study(toy_spec(trials=4, pairs=1), {})
    StudyRunner(store, FakeEvaluator(clock), FakePowerController(), clock, "test").run(study.id)
    return summarize_study(store.study(study.id), store.trials(study.id))


def page(summary: StudySummary, trial: int, note: str) -> str:
    found = Recommendation(trial=trial, verified=False, pairs=0, note=note)
    return report_html(replace(summary, recommendation=found), launching=Launching("energyopt serve x"), version="0")


def test_a_baseline_that_kept_its_objectives_is_not_called_unverified(summary: StudySummary) -> None:
    note = "The baseline is the best configuration that was found; it kept every SLO on fresh prompts."
    text = page(summary, 0, note)
    assert text.count("The baseline is the best configuration that was found") == 1
    assert "Not verified." not in text


def test_another_trial_without_proof_is_called_unverified(summary: StudySummary) -> None:
    text = page(summary, summary.rows[-1].trial, "Its gain is within the noise.")
    assert '<span class="bad">Not verified.</span>\nIts gain is within the noise.' in text
