"""Runs outside of studies: kept, found by the beginning of their id, newest first."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from energyopt.core.errors import NotFoundError, StoreError
from energyopt.core.runs import RunRecord
from energyopt.store.runs import open_runs


def record(run_id: str, kind: str = "bench", minutes: int = 0, document: str = '{"a": 1}') -> RunRecord:
    created = datetime(2026, 11, 30, tzinfo=UTC) + timedelta(minutes=minutes)
    return RunRecord(id=run_id, created=created, kind=kind, name="w", model="m", valid=True, document=document)


def test_runs_come_back(url: str) -> None:
    with open_runs(url) as store:
        store.add_run(record("aa1"))
        store.add_run(record("aa2", minutes=1, document='{"text": "\\u0000 é"}'))
        store.add_run(record("bb1", kind="verify"))
    with open_runs(url) as store:
        assert store.run("aa1", "bench") == record("aa1")
        assert store.run("latest", "bench").id == "aa2"
        assert [run.id for run in store.runs("bench")] == ["aa2", "aa1"]
        assert [run.id for run in store.runs("bench", limit=1)] == ["aa2"]
        assert store.run("bb", "verify").id == "bb1"


@pytest.mark.parametrize(
    ("asked", "words"), [("aa", "Several bench runs"), ("x", "no bench run 'x'"), ("a%", "no bench")]
)
def test_an_id_must_name_one_run(url: str, asked: str, words: str) -> None:
    with open_runs(url) as store:
        store.add_run(record("aa1"))
        store.add_run(record("aa2"))
        with pytest.raises(NotFoundError, match=words):
            store.run(asked, "bench")
        with pytest.raises(StoreError, match="refused"):
            store.add_run(record("aa1"))
