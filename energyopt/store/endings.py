"""How trials and attempts end: the same for whoever ran them, by lease, by the leader's own hand, or elsewhere.

Each runs in a transaction of the caller, which holds the study (``locked_study``).
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from energyopt.core.errors import NotFoundError
from energyopt.core.results import RunResult
from energyopt.core.study import TrialOutcome, TrialState

from .codec import clean, clean_optional
from .fronts import offer
from .lease_tables import LeaseRow
from .rows import put_result
from .tables import StudyRow, TrialRow


def locked_study(session: Session, study_id: str) -> StudyRow:
    """The study, held until the transaction ends: everyone else who writes to it waits. Raises NotFoundError."""
    row = session.scalar(select(StudyRow).where(StudyRow.id == clean(study_id)).with_for_update())
    if row is None:
        raise NotFoundError(f"There is no study {study_id[:60]!r}.")
    return row


def conclude(
    session: Session,
    trial: TrialRow,
    outcome: TrialOutcome,
    now: datetime,
    *,
    result: RunResult | None = None,
    error: str | None = None,
) -> None:
    """The trial is DONE, with what became of it, and the fronts of its study know."""
    trial.state, trial.outcome = TrialState.DONE.value, outcome.value
    trial.ended, trial.error = now, clean_optional(error)
    if result is not None:
        put_result(trial, result)
    session.flush()
    offer(session, trial)


def end_attempt(session: Session, trial: TrialRow, ending: str, now: datetime) -> float:
    """The attempt that runs is over, and so is its lease if it had one; how many seconds it took."""
    run = trial.runs[-1]
    run.ended, run.ending = now, ending
    drop_lease(session, trial)
    return (now - run.started).total_seconds()


def drop_lease(session: Session, trial: TrialRow) -> None:
    """Nobody holds the trial any more, and its devices are free: what its last holder brings is not taken."""
    session.execute(delete(LeaseRow).where(LeaseRow.trial_id == trial.id))
