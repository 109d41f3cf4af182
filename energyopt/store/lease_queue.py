"""Questions about trials that workers may be given, or hold. Each runs in a transaction of the caller."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from energyopt.core.errors import NotFoundError
from energyopt.core.leases import Glance, LeaseRecord, WorkerFacts
from energyopt.core.study import StudyState, TrialState
from energyopt.core.units import Seconds

from .codec import clean, load_texts
from .leading import VERIFYING, forsaken
from .lease_tables import LeadRow, LeaseRow
from .service_tables import JobRow
from .tables import AttemptRow, StudyRow, TrialRow

_GIVING = (StudyState.PLANNING.value, StudyState.RUNNING.value, StudyState.VERIFYING.value)
_LOOKED_AT = 20


def candidates(
    session: Session, worker: WorkerFacts, now: datetime, tenant: str | None, study_id: str | None
) -> list[tuple[str, int]]:
    """Queued trials that this worker may be given, the oldest study first: study and row."""
    query = select(StudyRow.id, TrialRow.id, StudyRow.machine).join(TrialRow, TrialRow.study_id == StudyRow.id)
    query = query.join(LeadRow, LeadRow.study_id == StudyRow.id).outerjoin(JobRow, JobRow.study_id == StudyRow.id)
    query = query.where(TrialRow.outcome.is_(None), TrialRow.state == TrialState.QUEUED.value)  # by the index
    query = query.where(StudyRow.state.in_(_GIVING))
    query = query.where(StudyRow.owner == LeadRow.leader, StudyRow.lease_until > now)
    query = query.where(or_(LeadRow.hardware.is_(None), LeadRow.hardware == clean(worker.hardware)))
    theirs = or_(LeadRow.verifier.is_(None), LeadRow.verifier == clean(worker.id))
    query = query.where(or_(TrialRow.origin.not_in(VERIFYING), theirs))
    if tenant is not None:
        query = query.where(JobRow.tenant == clean(tenant))
    if study_id is not None:
        query = query.where(StudyRow.id == clean(study_id))
    rows = session.execute(query.order_by(StudyRow.sequence, TrialRow.number).limit(_LOOKED_AT)).all()
    return [(study, trial) for study, trial, machine in rows if _kind(machine) in worker.kinds]


def glance(session: Session, study_id: str, numbers: Sequence[int], now: datetime) -> Glance:
    """Where a study stands. Raises NotFoundError."""
    study = session.execute(select(StudyRow.state, StudyRow.owner).where(StudyRow.id == clean(study_id))).one_or_none()
    if study is None:
        raise NotFoundError(f"There is no study {study_id[:60]!r}.")
    done = select(TrialRow.number, AttemptRow.started, AttemptRow.ended).join(
        AttemptRow, and_(AttemptRow.trial_id == TrialRow.id, AttemptRow.number == TrialRow.attempts)
    )
    done = done.where(TrialRow.study_id == study_id, TrialRow.state == TrialState.DONE.value)
    ended = session.execute(done.where(TrialRow.number.in_(numbers)).order_by(TrialRow.number)).all() if numbers else []
    query = select(LeaseRow, TrialRow).join(TrialRow, TrialRow.id == LeaseRow.trial_id)
    held = session.execute(query.where(TrialRow.study_id == study_id).order_by(TrialRow.number)).all()
    return Glance(
        state=StudyState(study.state),
        owner=study.owner,
        done={number: Seconds(((end or start) - start).total_seconds()) for number, start, end in ended},
        leases=tuple(lease_record(row, trial) for row, trial in held if row.expires > now),
        lost=any(row.expires <= now for row, _ in held),
        forsaken=forsaken(session, study_id, now),
    )


def lease_record(row: LeaseRow, trial: TrialRow) -> LeaseRecord:
    """A lease on a trial."""
    return LeaseRecord(
        id=row.id,
        study_id=trial.study_id,
        number=trial.number,
        attempt=trial.attempts,
        worker=row.worker,
        expires=row.expires,
        stage=row.stage,
        fraction=row.fraction,
    )


def _kind(machine: str) -> str:
    """The evaluator of a study, as its facts name it."""
    choice = json.loads(load_texts(machine).get("evaluator", "{}"))
    return str(choice.get("kind", "embedded"))
