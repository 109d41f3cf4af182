"""Rows by the id of a lease, which names its trial and attempt. Each runs in a transaction of the caller."""

from __future__ import annotations

from sqlalchemy.orm import Session

from energyopt.core.config import Deployment
from energyopt.core.leases import LeaseGoneError

from .codec import clean
from .lease_tables import LeaseRow
from .service_tables import JobRow
from .tables import AttemptRow, TrialRow


def gone(lease_id: str) -> LeaseGoneError:
    """What to raise for a lease that is over."""
    return LeaseGoneError(f"The lease {lease_id[:60]!r} has ended: what it measured is not taken.")


def lease_row(session: Session, lease_id: str) -> LeaseRow:
    """A lease that nobody has ended. Raises LeaseGoneError."""
    row = session.get(LeaseRow, clean(lease_id))
    if row is None:
        raise gone(lease_id)
    return row


def is_of(session: Session, study_id: str, tenant: str | None) -> bool:
    """Whether a worker of the tenant may have trials of the study; without a tenant it may have any."""
    job = session.get(JobRow, study_id)
    return tenant is None or (job is not None and job.tenant == clean(tenant))


def device_kind(trial: TrialRow) -> str:
    """The kind of device that the configuration names."""
    return Deployment.model_validate_json(trial.deployment).decode.engine.device


def trial_of(session: Session, row: LeaseRow) -> TrialRow:
    """What the lease is on."""
    trial = session.get(TrialRow, row.trial_id)
    assert trial is not None  # a foreign key says so
    return trial


def attempt_of(session: Session, lease_id: str) -> AttemptRow | None:
    """What is on record of a lease, whether it lasts or not."""
    words = lease_id.split(".")
    try:
        trial_id, number = int(words[0], 16), int(words[1])
    except (ValueError, IndexError):
        return None
    if not (0 <= trial_id < 2**63 and 0 <= number < 2**31):
        return None
    run = session.get(AttemptRow, (trial_id, number))
    return run if run is not None and run.owner == lease_id else None


def done_by(session: Session, lease_id: str) -> TrialRow | None:
    """The trial that this lease has finished already: its answer may have been lost on the way."""
    run = attempt_of(session, lease_id)
    return session.get(TrialRow, run.trial_id) if run is not None and run.ending == "finished" else None
