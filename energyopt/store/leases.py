"""Leases on trials in SQL: one attempt at one trial, on devices of its own, until it is done, given back or lost.

Each transaction takes the row of one study at most, so the events of a study stay in order and nothing deadlocks. A
lease's id names its trial and attempt, so what became of one that is gone can be found.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta

from sqlalchemy import Engine, delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from energyopt.core.clock import Clock
from energyopt.core.errors import NotFoundError
from energyopt.core.leases import (
    FINISHED,
    MAX_ATTEMPTS,
    REQUEUED,
    STARTED,
    DevicesTakenError,
    Glance,
    LeaseGoneError,
    LeaseRecord,
    WorkerFacts,
    WorkerRecord,
)
from energyopt.core.results import RunResult
from energyopt.core.study import TrialOutcome, TrialRecord, TrialState, Value
from energyopt.core.units import Seconds

from .codec import clean, clean_optional, clean_values, dump_values
from .fronts import offer
from .lease_queue import candidates, count_hands, glance, heard_of, known_workers, lease_record, note_worker
from .lease_tables import DeviceLeaseRow, LeadRow, LeaseRow
from .refusal import session_on
from .rows import put_result, trial_record
from .tables import AttemptRow, EventRow, StudyRow, TrialRow


class SqlLeaseStore:
    """A ``LeaseStore`` over an engine whose database is at this version's revision."""

    def __init__(self, engine: Engine, clock: Clock, name: str) -> None:
        self._readers = engine
        self._writers = engine.execution_options(sqlite_begin="IMMEDIATE")
        self._clock, self.name = clock, name

    def lead(self, study_id: str, leader: str, *, verifier: str | None = None) -> None:
        with self._session(self._writers) as session:
            _locked(session, study_id)
            row = session.get(LeadRow, study_id) or LeadRow(study_id=study_id)
            row.leader, row.verifier = clean(leader), clean_optional(verifier)
            session.add(row)

    def acquire(
        self, worker: WorkerFacts, ttl: Seconds, *, tenant: str | None = None, study_id: str | None = None
    ) -> LeaseRecord | None:
        now = self._clock.utc()
        with self._session(self._writers) as session:
            note_worker(session, worker, tenant, now)
            held = session.scalar(select(LeaseRow).where(LeaseRow.worker == clean(worker.id), LeaseRow.expires > now))
            if held is not None:
                held.expires = now + timedelta(seconds=ttl)
                return lease_record(held, _trial(session, held))
        for study in self._with_lost_leases(now):
            self.reap(study)
        with self._session(self._readers) as session:
            found = candidates(session, worker, now, tenant, study_id)
        for study, trial_id in found:
            taken = self._take(worker, ttl, study, trial_id)
            if taken is not None:
                return taken
        return None

    def renew(self, lease_id: str, ttl: Seconds, *, stage: str = "", fraction: float = 0.0) -> LeaseRecord:
        with self._session(self._writers) as session:
            row, now = self._lasting(session, lease_id), self._clock.utc()
            row.expires, row.stage, row.fraction = now + timedelta(seconds=ttl), clean(stage)[:40], fraction
            heard_of(session, row.worker, now)
            return lease_record(row, _trial(session, row))

    def study_of(self, lease_id: str) -> str:
        with self._session(self._readers) as session:
            run = _attempt(session, lease_id)
            trial = None if run is None else session.get(TrialRow, run.trial_id)
            if trial is None:
                raise LeaseGoneError(f"There is no lease {lease_id[:60]!r}.")
            return trial.study_id

    def finish(
        self,
        lease_id: str,
        outcome: TrialOutcome,
        *,
        result: RunResult | None = None,
        error: str | None = None,
        summary: Mapping[str, Value] | None = None,
    ) -> TrialRecord:
        with self._session(self._writers) as session:
            done = _done_by(session, lease_id)
            if done is not None:
                return trial_record(done)
            row, trial = self._held(session, lease_id)
            self._end(session, row, trial, outcome, "finished", error, result, summary)
            session.flush()
            offer(session, trial)
            return trial_record(trial)

    def give_back(self, lease_id: str, *, fault: str | None = None) -> None:
        with self._session(self._writers) as session:
            row, trial = self._held(session, lease_id)
            if fault is None:
                session.delete(trial.runs[-1])
                trial.attempts -= 1
                self._queue(session, row, trial)
            elif trial.attempts >= MAX_ATTEMPTS:
                why = f"The infrastructure failed {trial.attempts} times, at last: {clean(fault)[:2000]}"
                self._end(session, row, trial, TrialOutcome.FAILED, "fault", why)
            else:
                self._close(trial, "fault")
                self._queue(session, row, trial)

    def reap(self, study_id: str, *, orphans: bool = False) -> list[int]:
        with self._session(self._writers) as session:
            _locked(session, study_id)
            now, numbers = self._clock.utc(), []
            query = select(TrialRow, LeaseRow).outerjoin(LeaseRow, LeaseRow.trial_id == TrialRow.id)
            query = query.where(TrialRow.study_id == study_id, TrialRow.outcome.is_(None))
            query = query.where(TrialRow.state == TrialState.RUNNING.value)
            found: list[tuple[TrialRow, LeaseRow | None]] = [
                (trial, row) for trial, row in session.execute(query.order_by(TrialRow.number)).all()
            ]
            for trial, row in found:
                if (row is None and not orphans) or (row is not None and row.expires > now):
                    continue
                if trial.attempts >= MAX_ATTEMPTS:
                    why = f"The process running this configuration was lost {trial.attempts} times."
                    self._end(session, row, trial, TrialOutcome.CRASHED, "lost", why)
                    continue
                self._close(trial, "lost")
                self._queue(session, row, trial)
                numbers.append(trial.number)
            return numbers

    def glance(self, study_id: str, numbers: Sequence[int]) -> Glance:
        with self._session(self._readers) as session:
            return glance(session, study_id, numbers, self._clock.utc())

    def hands(self, study_id: str, within: Seconds) -> int:
        with self._session(self._readers) as session:
            return count_hands(session, study_id, self._clock.utc() - timedelta(seconds=within))

    def workers(self, within: Seconds, tenant: str | None = None) -> Sequence[WorkerRecord]:
        with self._session(self._readers) as session:
            return known_workers(session, self._clock.utc() - timedelta(seconds=within), tenant)

    def _take(self, worker: WorkerFacts, ttl: Seconds, study_id: str, trial_id: int) -> LeaseRecord | None:
        """The trial, if it is still to be had. Raises DevicesTakenError."""
        try:
            with self._session(self._writers) as session:
                study, now = _locked(session, study_id), self._clock.utc()
                lead, trial = session.get(LeadRow, study_id), session.get(TrialRow, trial_id)
                if lead is None or trial is None or trial.state != TrialState.QUEUED.value:
                    return None
                if study.owner != lead.leader or lead.hardware not in (None, worker.hardware):
                    return None
                lead.hardware = worker.hardware
                trial.state, trial.attempts = TrialState.RUNNING.value, trial.attempts + 1
                lease_id = f"{trial.id:x}.{trial.attempts}.{secrets.token_hex(16)}"
                trial.runs.append(AttemptRow(number=trial.attempts, owner=lease_id, started=now))
                expires = now + timedelta(seconds=ttl)
                session.execute(delete(LeaseRow).where(LeaseRow.worker == clean(worker.id), LeaseRow.expires <= now))
                row = LeaseRow(
                    id=lease_id, trial_id=trial.id, worker=clean(worker.id), expires=expires, stage="", fraction=0.0
                )
                session.add(row)
                session.flush()
                host = clean(worker.host)
                for device in worker.devices:
                    session.add(DeviceLeaseRow(host=host, device=clean(device), lease_id=lease_id))
                self._say(session, trial, STARTED, {"origin": trial.origin, "worker": clean(worker.id)})
                session.flush()
                return lease_record(row, trial)
        except IntegrityError as error:
            shown = ", ".join(worker.devices)
            raise DevicesTakenError(f"Another worker measures on {shown} of {worker.host} now.") from error

    def _end(
        self,
        session: Session,
        row: LeaseRow | None,
        trial: TrialRow,
        outcome: TrialOutcome,
        ending: str,
        error: str | None,
        result: RunResult | None = None,
        summary: Mapping[str, Value] | None = None,
    ) -> None:
        took = self._close(trial, ending)
        trial.state, trial.outcome = TrialState.DONE.value, outcome.value
        trial.ended, trial.error = self._clock.utc(), clean_optional(error)
        if result is not None:
            put_result(trial, result)
        if row is not None:
            session.delete(row)
        said = {"outcome": outcome.value, "ran": result is not None, **clean_values(summary or {}), "seconds": took}
        self._say(session, trial, FINISHED, said)

    def _close(self, trial: TrialRow, ending: str) -> float:
        """End the attempt; how many seconds it took."""
        run, now = trial.runs[-1], self._clock.utc()
        run.ended, run.ending = now, ending
        return (now - run.started).total_seconds()

    def _queue(self, session: Session, row: LeaseRow | None, trial: TrialRow) -> None:
        trial.state = TrialState.QUEUED.value
        if row is not None:
            session.delete(row)
        self._say(session, trial, REQUEUED, {})

    def _say(self, session: Session, trial: TrialRow, kind: str, data: Mapping[str, Value]) -> None:
        text = dump_values({"trial": trial.number, **data})
        session.add(EventRow(study_id=trial.study_id, at=self._clock.utc(), kind=kind, data=text))

    def _held(self, session: Session, lease_id: str) -> tuple[LeaseRow, TrialRow]:
        """A lease that lasts and its trial, with their study locked."""
        study_id = _trial(session, self._lasting(session, lease_id)).study_id
        study = _locked(session, study_id)
        session.expire_all()  # it may have ended while we waited for the study
        row = self._lasting(session, lease_id)
        study.updated = self._clock.utc()
        return row, _trial(session, row)

    def _lasting(self, session: Session, lease_id: str) -> LeaseRow:
        row = session.get(LeaseRow, clean(lease_id))
        if row is None or row.expires <= self._clock.utc():
            raise LeaseGoneError(f"The lease {lease_id[:60]!r} has ended: what it measured is not taken.")
        return row

    def _with_lost_leases(self, now: datetime) -> list[str]:
        query = select(TrialRow.study_id).join(LeaseRow, LeaseRow.trial_id == TrialRow.id)
        with self._session(self._readers) as session:
            return list(session.scalars(query.where(LeaseRow.expires <= now).distinct().limit(100)))

    def _session(self, engine: Engine) -> AbstractContextManager[Session]:
        return session_on(engine, self.name, passing=(IntegrityError,))


def _locked(session: Session, study_id: str) -> StudyRow:
    row = session.scalar(select(StudyRow).where(StudyRow.id == clean(study_id)).with_for_update())
    if row is None:
        raise NotFoundError(f"There is no study {study_id[:60]!r}.")
    return row


def _trial(session: Session, row: LeaseRow) -> TrialRow:
    trial = session.get(TrialRow, row.trial_id)
    assert trial is not None  # a foreign key says so
    return trial


def _attempt(session: Session, lease_id: str) -> AttemptRow | None:
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


def _done_by(session: Session, lease_id: str) -> TrialRow | None:
    """The trial that this lease has finished already: its answer may have been lost on the way."""
    run = _attempt(session, lease_id)
    return session.get(TrialRow, run.trial_id) if run is not None and run.ending == "finished" else None
