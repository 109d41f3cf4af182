"""What is stored about studies and how it is shown: the open database, summaries, launch commands, artifacts.

Needs neither the engine nor torch, so that looking at results is quick.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from energyopt import __version__
from energyopt.core.config import Deployment, PowerConfig
from energyopt.core.errors import ConfigError, StoreError
from energyopt.core.study import Artifact, Origin, StudyRecord
from energyopt.core.study_store import StudyStore
from energyopt.core.units import megahertz
from energyopt.store.database import database_file, default_url, open_store
from tuner.evaluators.choice import EvaluatorChoice, evaluator_choice
from tuner.evaluators.recorded import recorded_study
from tuner.export.command import serve_command, vllm_command
from tuner.export.manifest import manifest_json
from tuner.export.report import draw, report_html
from tuner.export.sglang import sglang_command
from tuner.objective import Objective
from tuner.references import Reference, references
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


@dataclass(frozen=True, slots=True)
class Launching:
    """How the recommended configuration is started: a line for a shell, and what to know of it.

    ``shell`` is None where no single command starts it, and then ``remark`` says why; else it may be empty.
    """

    shell: str | None
    remark: str = ""


def launch_command(session: Session, study_id: str) -> Launching | None:
    """The command that starts the recommended configuration on the engine of its study; None without one."""
    study = session.store.study(study_id)
    if study.recommendation is None:
        return None
    number = study.recommendation.trial
    trial = next(trial for trial in session.store.trials(study_id) if trial.number == number)
    try:
        return _launching(session, study, trial.deployment)
    except ConfigError as error:
        return Launching(None, error.message)


def _launching(session: Session, study: StudyRecord, deployment: Deployment) -> Launching:
    """Raises ConfigError, with the reason, where no single command starts it."""
    choice = evaluator_choice(study.machine)
    if choice.kind == "replay":
        return _launching(session, recorded_study(session.store, choice), deployment)
    if choice.kind == "endpoint":
        return _limits_of(choice, deployment)
    if choice.kind == "vllm":
        command = vllm_command(deployment)
    elif choice.kind == "sglang":
        command = sglang_command(deployment)
    else:
        command = serve_command(deployment, tuned=study.spec.space)
    return Launching(command.shell, " ".join(command.remarks))


def _limits_of(choice: EvaluatorChoice, deployment: Deployment) -> Launching:
    """The server of an endpoint runs already: only the limits of its devices are ours to set."""
    power, remark = deployment.decode.power, f"The server at {choice.url} stays as it is."
    words = ["energyopt", "cap", "set", *([] if power.cap is None else [f"{power.cap:.10g}W"])]
    if power.sm_clock is not None:
        words += ["--sm-clock", f"{megahertz(power.sm_clock)}MHz"]
    for device in choice.devices:
        words += ["--device", device]
    return Launching(None if power == PowerConfig() else shlex.join(words), remark)


def write_artifacts(session: Session, study_id: str) -> None:
    """The report, the picture and the manifest; also of a winner that no single command starts."""
    summary = study_summary(session, study_id)
    trials = session.store.trials(study_id)
    worths, luck = winner_worth(session, study_id), study_references(session, study_id)
    pictures = draw(summary, luck)
    report = report_html(
        summary,
        launching=launch_command(session, study_id) or Launching(None),
        worths=worths,
        saved=saved_per_day(session, study_id),
        references=luck,
        pictures=pictures,
        version=__version__,
    )
    pages = {
        "report.html": ("text/html", report.encode()),
        **{name: ("image/png", picture) for name, picture in pictures.items()},
        "manifest.json": ("application/json", manifest_json(summary.study, trials, version=__version__).encode()),
    }
    folder = study_folder(session, study_id)
    for name, (media_type, content) in pages.items():
        session.store.add_artifact(study_id, write_artifact(folder, name, media_type, content))


def study_references(session: Session, study_id: str) -> list[Reference]:
    """What random and Sobol search would be expected to have found with as many trials, by the study's own model."""
    study, trials = session.store.study(study_id), session.store.trials(study_id)
    space = SearchSpace(study.spec.space, study.spec.baseline)
    return references(space, trials, Objective(study.spec.maximize, study.spec.slos))


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
