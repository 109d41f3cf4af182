"""The study that a path names, if the caller may see it, and what was done to it for the log."""

from __future__ import annotations

from energyopt.core.errors import NotFoundError
from energyopt.core.study import StudyRecord

from .door import Caller
from .services import JobServices


def study_of(services: JobServices, caller: Caller, study_id: str) -> StudyRecord:
    """By its whole id. Raises NotFoundError, also for a study of another tenant: its existence is not told."""
    study = services.studies.study(study_id) if _is_id(study_id) else None
    if study is None or study.id != study_id:
        raise NotFoundError(f"There is no study {study_id[:60]!r}.")
    if caller.tenant is not None and services.jobs.job(study.id).tenant != caller.tenant:
        raise NotFoundError(f"There is no study {study_id[:60]!r}.")
    return study


def _is_id(text: str) -> bool:
    return len(text) == 12 and all(letter in "0123456789abcdef" for letter in text)


def note(services: JobServices, caller: Caller, action: str, target: str, detail: str = "") -> None:
    """Add to the audit log what was done."""
    services.keys.note(caller.name, action, target, detail)
