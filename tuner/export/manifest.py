"""The manifest of a study: what to run, how it was found, and the measurements behind it, as one JSON document."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

from energyopt.core.config import Deployment
from energyopt.core.errors import ConfigError
from energyopt.core.study import StudyRecord, TrialRecord

from .command import LaunchCommand, serve_command, vllm_command
from .sglang import sglang_command

FORMAT = "energyopt.study/1"
"""Name and version of the document; a change that breaks a reader takes the next number."""


def manifest_json(study: StudyRecord, trials: Sequence[TrialRecord], *, version: str) -> str:
    """The document as text. Without a recommendation ``deployment`` and ``commands`` are null.

    The evidence holds the recommended trial, the baseline, every repetition of either and every verification run, with
    all readings and verdicts.
    """
    chosen = study.recommendation.trial if study.recommendation else None
    winner = next((trial for trial in trials if trial.number == chosen), None)
    shown = {study.spec.baseline, *([winner.deployment] if winner else [])}
    document = {
        "format": FORMAT,
        "energyopt": version,
        "study": {"id": study.id, "name": study.spec.name, "state": study.state, "created": study.created.isoformat()},
        "machine": dict(study.machine),
        "question": {
            "maximize": study.spec.maximize,
            "slos": list(study.spec.slos),
            "workload": _workload(study),
            "plan": study.spec.plan.model_dump(mode="json"),
            "space": study.spec.space.model_dump(mode="json"),
            "space_digest": study.spec.space.digest(),
            "seed": study.spec.seed,
        },
        "recommendation": study.recommendation.model_dump(mode="json") if study.recommendation else None,
        "deployment": winner.deployment.model_dump(mode="json") if winner else None,
        "commands": _commands(winner.deployment, study) if winner else None,
        "baseline": study.spec.baseline.model_dump(mode="json"),
        "evidence": [_evidence(trial) for trial in trials if _counts(trial, shown)],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _counts(trial: TrialRecord, shown: Collection[Deployment]) -> bool:
    """Whether a trial says something about the comparison: a run of one of its sides, or of the verification."""
    return trial.deployment in shown or trial.origin.verifies


def _evidence(trial: TrialRecord) -> dict[str, Any]:
    derived: dict[str, Any] = {}
    if trial.result is not None:
        derived = {
            "tokens_per_joule": trial.result.tokens_per_joule,
            "output_rate": trial.result.output_rate,
            "joules_per_request": trial.result.joules_per_request,
        }
    return trial.model_dump(mode="json", exclude={"deployment"}) | {"derived": derived}


def _workload(study: StudyRecord) -> dict[str, Any]:
    """The workloads by what regenerates them; their text is in the database."""
    return {
        role: {"name": w.name, "seed": w.seed, "sessions": len(w.sessions), "concurrency": w.concurrency}
        for role, w in (("search", study.spec.workload), ("verify", study.spec.verify_workload))
    }


def _commands(deployment: Deployment, study: StudyRecord) -> dict[str, Any]:
    """By engine; ``none`` says why there is no such command."""
    return {
        "energyopt": _spelled(lambda: serve_command(deployment, tuned=study.spec.space)),
        "vllm": _spelled(lambda: vllm_command(deployment)),
        "sglang": _spelled(lambda: sglang_command(deployment)),
    }


def _spelled(make: Callable[[], LaunchCommand]) -> dict[str, Any]:
    try:
        command = make()
    except ConfigError as error:
        return {"none": error.message}
    return {"argv": list(command.argv), "shell": command.shell, "dropped": list(command.remarks)}
