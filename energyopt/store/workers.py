"""Workers that asked for work: who they are, and when they were last heard of. In a transaction of the caller."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

from sqlalchemy import and_, delete, func, or_, select
from sqlalchemy.orm import Session

from energyopt.core.errors import ConfigError
from energyopt.core.leases import WorkerFacts, WorkerRecord

from .codec import clean, clean_optional
from .lease_tables import LeadRow, LeaseRow, WorkerRow
from .service_tables import JobRow
from .tables import TrialRow

_FORGET = timedelta(days=1)
_FRESH = timedelta(seconds=5)


def note_worker(session: Session, worker: WorkerFacts, tenant: str | None, now: datetime) -> None:
    """A worker asks for work. Written every few seconds only: it may ask often.

    Raises ConfigError for the name of another tenant's.
    """
    known = session.get(WorkerRow, clean(worker.id))
    if known is not None and known.tenant != clean_optional(tenant):
        raise ConfigError(f"The worker's id {worker.id[:60]!r} is taken: choose another.")
    if known is not None and now - known.seen < _FRESH:
        return
    session.execute(delete(WorkerRow).where(WorkerRow.seen < now - _FORGET, WorkerRow.id != clean(worker.id)))
    row = known or WorkerRow(id=clean(worker.id))
    row.host, row.hardware, row.seen = clean(worker.host), clean(worker.hardware), now
    row.devices, row.tenant = device_words(worker), clean_optional(tenant)
    session.add(row)


def device_words(worker: WorkerFacts) -> str:
    """The devices of a worker as its row has them."""
    return json.dumps([clean(device) for device in worker.devices])


def heard_of(session: Session, worker_id: str, now: datetime) -> None:
    """A worker that measures gave a sign of life."""
    row = session.get(WorkerRow, worker_id)
    if row is not None:
        row.seen = now


def count_hands(session: Session, study_id: str, since: datetime) -> int:
    """How many of the workers heard of since then could measure trials of a study at once.

    One process may ask under several names: what counts is the devices.
    """
    lead = session.get(LeadRow, study_id)
    job = session.get(JobRow, study_id)
    query = select(WorkerRow.host, WorkerRow.devices).where(WorkerRow.seen >= since)
    if lead is not None and lead.hardware is not None:
        query = query.where(WorkerRow.hardware == lead.hardware)
    tenant = None if job is None else job.tenant
    query = query.where(or_(WorkerRow.tenant.is_(None), WorkerRow.tenant == tenant))
    return session.scalar(select(func.count()).select_from(query.distinct().subquery())) or 0


def known_workers(session: Session, since: datetime, tenant: str | None) -> list[WorkerRecord]:
    """Workers heard of since then, of a tenant if given, with what they measure."""
    query = select(WorkerRow, TrialRow.study_id, TrialRow.number)
    lasting = and_(LeaseRow.worker == WorkerRow.id, LeaseRow.expires > since)
    query = query.outerjoin(LeaseRow, lasting).outerjoin(TrialRow, TrialRow.id == LeaseRow.trial_id)
    query = query.where(WorkerRow.seen >= since).order_by(WorkerRow.id).limit(1000)
    if tenant is not None:
        query = query.where(WorkerRow.tenant == clean(tenant))
    return [
        WorkerRecord(
            id=row.id,
            host=row.host,
            hardware=row.hardware,
            devices=tuple(json.loads(row.devices)),
            tenant=row.tenant,
            seen=row.seen,
            study_id=study_id,
            trial=number,
        )
        for row, study_id, number in session.execute(query)
    ]
