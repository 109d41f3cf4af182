"""What is stored about studies and how it is shown: the open database, summaries, launch commands, artifacts.

Needs neither the engine nor torch, so that looking at results is quick.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from energyopt import __version__
from energyopt.core.errors import StoreError
from energyopt.core.study import Artifact, Origin
from energyopt.core.study_store import StudyStore
from energyopt.store.database import database_file, default_url, open_store
from tuner.export.command import serve_command
from tuner.export.manifest import manifest_json
from tuner.export.picture import pareto_png
from tuner.export.report import report_html
from tuner.objective import Objective
from tuner.saved import DailySaving, daily_saving
from tuner.space import SearchSpace
from tuner.summary import StudySummary, summarize_study
from tuner.why import KnobWorth, explain


@dataclass(frozen=True, slots=True)
class Session:
    """An open database and the folder under which each study keeps its artifacts."""

    store: StudyStore
    url: str
    artifacts: Path


def open_session(url: str | None, out: Path | None) -> Session:
    """Open the database (the user's own by default); artifacts go to ``out``, else beside the database's file.

    Those of a database server go beside the user's own database. Raises ConfigError, or StoreError if the database
    cannot be written.
    """
    address = default_url(os.environ) if url is None else url
    store = open_store(address)
    file = database_file(address) or default_url(os.environ).removeprefix("sqlite:///")
    return Session(store, address, out or Path(file).parent / "studies")


def study_summary(session: Session, study_id: str) -> StudySummary:
    """The study as every screen shows it."""
    return summarize_study(session.store.study(study_id), session.store.trials(study_id))


def winner_worth(session: Session, study_id: str) -> list[KnobWorth]:
    """What each knob of the recommended configuration was worth; nothing without one, or if it is the baseline."""
    study, trials = session.store.study(study_id), session.store.trials(study_id)
    number = study.recommendation.trial if study.recommendation else None
    winner = next((trial for trial in trials if trial.number == number), None)
    if winner is None or winner.origin is Origin.BASELINE:
        return []
    space = SearchSpace(study.spec.space, study.spec.baseline)
    return explain(space, trials, Objective(study.spec.maximize, study.spec.slos), winner.params)


def saved_per_day(session: Session, study_id: str) -> DailySaving | None:
    """What the recommendation saves at the baseline's load; None where that was not measured."""
    study = session.store.study(study_id)
    baseline = next((t for t in session.store.trials(study_id) if t.origin is Origin.BASELINE), None)
    if study.recommendation is None or baseline is None or baseline.result is None:
        return None
    return daily_saving(baseline.result, study.recommendation)


def objective_unit(session: Session, study_id: str) -> str:
    """The unit of what the study maximises, for progress and plots."""
    return "tokens/J" if session.store.study(study_id).spec.maximize == "tokens_per_joule" else "tok/s"


def launch_command(session: Session, study_id: str) -> str | None:
    """The shell command that serves the recommended configuration; None without a recommendation."""
    study = session.store.study(study_id)
    if study.recommendation is None:
        return None
    number = study.recommendation.trial
    trial = next(trial for trial in session.store.trials(study_id) if trial.number == number)
    return serve_command(trial.deployment, tuned=study.spec.space).shell


def write_artifacts(session: Session, study_id: str) -> None:
    summary = study_summary(session, study_id)
    command = launch_command(session, study_id) or ""
    trials = session.store.trials(study_id)
    pages = {
        "report.html": ("text/html", report_html(summary, command=command, version=__version__).encode()),
        "pareto.png": ("image/png", pareto_png(summary)),
        "manifest.json": ("application/json", manifest_json(summary.study, trials, version=__version__).encode()),
    }
    folder = study_folder(session, study_id)
    for name, (media_type, content) in pages.items():
        session.store.add_artifact(study_id, write_artifact(folder, name, media_type, content))


def write_artifact(folder: Path, name: str, media_type: str, content: bytes) -> Artifact:
    """Write a file whole or not at all (a temporary name, then a rename). Raises StoreError."""
    path, part = folder / name, folder / f".{name}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise StoreError(f"The artifact {path} cannot be written: {error.strerror}.") from error
    digest = hashlib.sha256(content).hexdigest()
    return Artifact(name=name, path=str(path), media_type=media_type, sha256=digest, bytes=len(content))


def study_folder(session: Session, study_id: str) -> Path:
    return session.artifacts / study_id
