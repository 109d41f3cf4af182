"""A document that this version does not understand is a refusal that names it, not a crash."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from energyopt.core.config import Deployment
from energyopt.core.errors import StoreError
from energyopt.core.results import RunResult
from energyopt.core.study import Origin, StudySpec, TrialOutcome
from energyopt.store.database import open_store
from energyopt.store.repository import SqlStudyStore

Read = Callable[[SqlStudyStore, str], object]


def study(store: SqlStudyStore, study_id: str) -> object:
    return store.study(study_id)


def trials(store: SqlStudyStore, study_id: str) -> object:
    return store.trials(study_id)


def events(store: SqlStudyStore, study_id: str) -> object:
    return store.events(study_id)


@pytest.mark.parametrize(
    ("damage", "read", "named"),
    [
        ("UPDATE energyopt_studies SET spec = json_set(spec, '$.later', 1)", study, "Study "),
        ("UPDATE energyopt_studies SET spec = '{'", study, "Study "),
        ("UPDATE energyopt_studies SET state = 'dreaming'", study, "Study "),
        ("UPDATE energyopt_studies SET machine = '[1]'", study, "Study "),
        ("UPDATE energyopt_studies SET recommendation = '{}'", study, "Study "),
        ("UPDATE energyopt_trials SET result = json_remove(result, '$.window')", trials, "Trial 0 of study "),
        ("UPDATE energyopt_trials SET outcome = 'wonderful'", trials, "Trial 0 of study "),
        ("UPDATE energyopt_trials SET params = '{\"a\": []}'", trials, "Trial 0 of study "),
        ("UPDATE energyopt_events SET data = 'x'", events, "Event 1 of study "),
    ],
)
def test_foreign_documents(
    tmp_path: Path, spec: StudySpec, deployment: Deployment, result: RunResult, damage: str, read: Read, named: str
) -> None:
    path = str(tmp_path / "e.db")
    with open_store(path) as store:
        made = store.create_study(spec, {}).id
        store.add_trial(made, {}, deployment, Origin.BASELINE)
        store.start_attempt(made, 0, "a")
        store.finish_trial(made, 0, TrialOutcome.FEASIBLE, result=result)
        store.add_event(made, "x", {})
        read(store, made)
        connection = sqlite3.connect(path)
        connection.execute(damage)
        connection.commit()
        connection.close()
        with pytest.raises(StoreError, match=rf"^{named}.*: it was stored by another version of energyopt\.$"):
            read(store, made)
