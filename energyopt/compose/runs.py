"""Keeps runs that belong to no study: in the database, and as files beside it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pydantic import ValidationError

from energyopt import __version__
from energyopt.core.errors import StoreError
from energyopt.core.runs import RunRecord
from energyopt.store.database import default_url
from energyopt.store.runs import open_runs
from tuner.replay.compare import Difference
from tuner.replay.report import report_html
from tuner.replay.result import BenchResult

from .results import write_artifact

BENCH = "bench"


def keep_bench(
    result: BenchResult, db: str | None, out: Path | None, against: list[Difference]
) -> tuple[str, list[str]]:
    """Store ``result`` and write its report; returns the database and the files. Raises StoreError."""
    url = db or default_url(os.environ)
    record = RunRecord(
        id=result.id,
        created=result.created,
        kind=BENCH,
        name=result.subject.workload,
        model=result.subject.model,
        valid=result.valid,
        document=result.model_dump_json(),
    )
    with open_runs(url) as store:
        store.add_run(record)
    folder = (out or Path(default_url(os.environ).removeprefix("sqlite:///")).parent / "runs") / result.id
    pages = {
        "report.html": ("text/html", report_html(result, against, version=__version__).encode()),
        "result.json": ("application/json", json.dumps(_finite(result.document()), indent=1).encode()),
    }
    return url, [write_artifact(folder, name, kind, content).path for name, (kind, content) in pages.items()]


def stored_bench(run_id: str, db: str | None) -> BenchResult:
    """A benchmark by its id, the beginning of one, or "latest". Raises NotFoundError, StoreError."""
    with open_runs(db or default_url(os.environ)) as store:
        record = store.run(run_id, BENCH)
    try:
        return BenchResult.model_validate_json(record.document)
    except ValidationError as error:
        raise StoreError(f"The stored run {record.id} is of another version and cannot be read.") from error


def _finite(value: object) -> object:
    """JSON has no infinity: such numbers become text."""
    if isinstance(value, float) and value - value != 0:
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
