"""What a study's leader says of its trials to workers: on which kind of machine, and where the comparison runs.

Each runs in a transaction of the caller; those that write hold the study.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import and_, exists, or_, select, update
from sqlalchemy.orm import Session

from energyopt.core.errors import ConfigError
from energyopt.core.leases import HEARD, MEASURED_ON, WorkerFacts
from energyopt.core.study import Origin, TrialState

from .codec import clean, dump_values, load_texts
from .lease_tables import LeadRow, LeaseRow, WorkerRow
from .tables import StudyRow, TrialRow
from .workers import device_words

VERIFYING = tuple(origin.value for origin in Origin if origin.verifies)


def open_to_workers(session: Session, study_id: str, leader: str, verifier: WorkerFacts | None) -> None:
    """The queued trials are for workers. Raises ConfigError where the verifier is of another kind than those before.

    A comparison that began on another machine than the verifier's, or on one that is not known, begins anew. Without
    a verifier the first worker that takes a run of the comparison is it, and an earlier one stays so while it is heard
    of.
    """
    row = session.get(LeadRow, study_id) or LeadRow(study_id=study_id)
    pinned = pinned_kind(session, study_id)
    if verifier is not None and pinned not in (None, clean(verifier.hardware)):
        raise ConfigError(
            f"Study {study_id} was measured on {pinned}, and this machine is {verifier.hardware}: only trials of one "
            "kind of machine can be compared, so it is for a machine of the first kind to go on with."
        )
    row.leader = clean(leader)
    session.add(row)
    row.hardware = pinned if verifier is None else clean(verifier.hardware)
    if row.verifier is None or (verifier is not None and not _same_machine(session, row.verifier, verifier)):
        drop_pairs(session, study_id)
    if verifier is not None:
        row.verifier = clean(verifier.id)
    session.flush()


def pinned_kind(session: Session, study_id: str) -> str | None:
    """The kind of machine that trials of a study were measured on, or are now; None while any would do."""
    row = session.get(LeadRow, study_id)
    measured = or_(TrialRow.state == TrialState.DONE.value, exists().where(LeaseRow.trial_id == TrialRow.id))
    query = select(TrialRow.id).where(TrialRow.study_id == study_id, TrialRow.attempts > 0, measured)
    return None if row is None or session.scalar(query.limit(1)) is None else row.hardware


def admits(lead: LeadRow, study: StudyRow, trial: TrialRow, worker: WorkerFacts) -> bool:
    """Whether this worker may have the trial."""
    mine = trial.origin not in VERIFYING or lead.verifier in (None, clean(worker.id))
    return study.owner == lead.leader and lead.hardware in (None, clean(worker.hardware)) and mine


def bind(lead: LeadRow, study: StudyRow, trial: TrialRow, worker: WorkerFacts) -> None:
    """The worker takes the trial: others must be of its kind, and a comparison that it begins it also ends.

    The study says on what it is measured: its other facts are of where it was planned.
    """
    lead.hardware = clean(worker.hardware)
    facts = load_texts(study.machine)
    if facts.get(MEASURED_ON) != lead.hardware:
        study.machine = dump_values({**facts, MEASURED_ON: lead.hardware})
    if trial.origin in VERIFYING:
        lead.verifier = clean(worker.id)


def loosen(session: Session, study_id: str) -> None:
    """A trial was not measured after all: if none was, another kind of machine may begin, unless the leader's own."""
    row = session.get(LeadRow, study_id)
    if row is not None and row.verifier is None:
        row.hardware = pinned_kind(session, study_id)


def forsaken(session: Session, study_id: str, now: datetime) -> bool:
    """Whether the worker that the comparison waits for is not heard of any more."""
    silent = or_(WorkerRow.seen.is_(None), WorkerRow.seen < now - timedelta(seconds=HEARD))
    query = select(LeadRow.study_id).outerjoin(WorkerRow, WorkerRow.id == LeadRow.verifier)
    query = query.where(LeadRow.study_id == study_id, LeadRow.verifier != LeadRow.leader, silent)
    return session.scalar(query.where(~exists().where(LeaseRow.worker == LeadRow.verifier))) is not None


def release_verifier(session: Session, study_id: str) -> None:
    """Any worker may run the comparison, from its beginning."""
    row = session.get(LeadRow, study_id)
    if row is not None:
        row.verifier = None
        drop_pairs(session, study_id)


def drop_pairs(session: Session, study_id: str) -> None:
    """What the comparison has measured so far belongs to no pair: runs of two machines are never compared."""
    done = and_(TrialRow.study_id == study_id, TrialRow.origin.in_(VERIFYING), TrialRow.state == TrialState.DONE.value)
    session.execute(update(TrialRow).where(done, TrialRow.pair.is_not(None)).values(pair=None))


def _same_machine(session: Session, known: str, worker: WorkerFacts) -> bool:
    row = session.get(WorkerRow, known)
    there = None if row is None else (row.host, row.hardware, row.devices)
    return there == (clean(worker.host), clean(worker.hardware), device_words(worker))
