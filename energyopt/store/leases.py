"""Leases on trials in SQL: one attempt at one trial, on devices of its own, until it is done, given back or lost.

Each transaction takes the row of one study at most, so the events of a study stay in order and nothing deadlocks. A
lease's id names its trial and attempt, so what became of one that is gone can be found.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import datetime, timedelta

from sqlalchemy import Engine, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from energyopt.core.clock import Clock
from energyopt.core.errors import HeldError, NotFoundError
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

from .codec import clean, clean_values, dump_values
from .endings import conclude, drop_lease, end_attempt, locked_study
from .leading import admits, bind, forsaken, loosen, open_to_workers, pinned_kind, release_verifier
from .lease_queue import candidates, glance, lease_record
from .lease_rows import attempt_of, device_kind, done_by, gone, is_of, lease_row, trial_of
from .lease_tables import DeviceLeaseRow, LeadRow, LeaseRow
from .refusal import session_on
from .rows import trial_record
from .tables import AttemptRow, EventRow, TrialRow
from .workers import count_hands, heard_of, known_workers, note_worker


class SqlLeaseStore:
    """A ``LeaseStore`` over an engine whose database is at this version's revision."""

    def __init__(self, engine: Engine, clock: Clock, name: str) -> None:
        self._readers = engine
        self._writers = engine.execution_options(sqlite_begin="IMMEDIATE")
        self._clock, self.name = clock, name

    def lead(self, study_id: str, leader: str, *, verifier: WorkerFacts | None = None) -> None:
        with self._session(self._writers) as session:
            study = locked_study(session, study_id)
            if study.owner != clean(leader):
                raise HeldError(f"Study {study_id} is not held by who wants to lead it, but by {study.owner}.")
            open_to_workers(session, study.id, leader, verifier)

    def kind_of(self, study_id: str) -> str | None:
        with self._session(self._readers) as session:
            return pinned_kind(session, clean(study_id))

    def compare_anew(self, study_id: str) -> bool:
        with self._session(self._writers) as session:
            study = locked_study(session, study_id)
            if not forsaken(session, study.id, self._clock.utc()):
                return False
            release_verifier(session, study.id)
            return True

    def acquire(
        self, worker: WorkerFacts, ttl: Seconds, *, tenant: str | None = None, study_id: str | None = None
    ) -> LeaseRecord | None:
        now = self._clock.utc()
        with self._session(self._writers) as session:
            note_worker(session, worker, tenant, now)
            held = session.scalar(select(LeaseRow).where(LeaseRow.worker == clean(worker.id)))
            if held is not None and held.expires > now:
                trial = trial_of(session, held)
                if not is_of(session, trial.study_id, tenant):
                    return None
                held.expires = now + timedelta(seconds=ttl)
                return lease_record(held, trial)
            own = None if held is None else trial_of(session, held).study_id
        for study in self._with_lost_leases(now, own):
            with suppress(NotFoundError):  # it was deleted in this moment
                self.reap(study)
        with self._session(self._readers) as session:
            found = candidates(session, worker, now, tenant, study_id)
        for study, trial_id in found:
            with suppress(NotFoundError):
                taken = self._take(worker, ttl, study, trial_id)
                if taken is not None:
                    return taken
        return None

    def renew(self, lease_id: str, ttl: Seconds, *, stage: str = "", fraction: float = 0.0) -> LeaseRecord:
        with self._session(self._writers) as session:
            row, now = lease_row(session, lease_id), self._clock.utc()
            row.expires, row.stage, row.fraction = now + timedelta(seconds=ttl), clean(stage)[:40], fraction
            heard_of(session, row.worker, now)
            return lease_record(row, trial_of(session, row))

    def trial_of(self, lease_id: str) -> tuple[str, int]:
        with self._session(self._readers) as session:
            run = attempt_of(session, lease_id)
            trial = None if run is None else session.get(TrialRow, run.trial_id)
            if trial is None:
                raise LeaseGoneError(f"There is no lease {lease_id[:60]!r}.")
            return trial.study_id, trial.number

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
            done = done_by(session, lease_id)
            if done is not None:
                return trial_record(done)
            trial = self._held(session, lease_id)
            self._end(session, trial, outcome, "finished", error, result, summary)
            return trial_record(trial)

    def give_back(self, lease_id: str, *, fault: str | None = None) -> None:
        with self._session(self._writers) as session:
            trial = self._held(session, lease_id)
            if fault is None:
                session.delete(trial.runs[-1])
                trial.attempts -= 1
                drop_lease(session, trial)
                self._queue(session, trial)
            elif trial.attempts >= MAX_ATTEMPTS:
                why = f"The infrastructure failed {trial.attempts} times, at last: {clean(fault)[:2000]}"
                self._end(session, trial, TrialOutcome.FAILED, "fault", why)
            else:
                end_attempt(session, trial, "fault", self._clock.utc())
                self._queue(session, trial)

    def reap(self, study_id: str, *, orphans: bool = False) -> list[int]:
        with self._session(self._writers) as session:
            locked_study(session, study_id)
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
                    self._end(session, trial, TrialOutcome.CRASHED, "lost", why)
                    continue
                end_attempt(session, trial, "lost", now)
                self._queue(session, trial)
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
            with session_on(self._writers, self.name, passing=(IntegrityError,)) as session:
                study, now = locked_study(session, study_id), self._clock.utc()
                lead, trial = session.get(LeadRow, study_id), session.get(TrialRow, trial_id)
                if lead is None or trial is None or trial.state != TrialState.QUEUED.value:
                    return None
                if not admits(lead, study, trial, worker):
                    return None
                bind(lead, study, trial, worker)
                trial.state, trial.attempts = TrialState.RUNNING.value, trial.attempts + 1
                lease_id = f"{trial.id:x}.{trial.attempts}.{secrets.token_hex(16)}"
                trial.runs.append(AttemptRow(number=trial.attempts, owner=lease_id, started=now))
                expires = now + timedelta(seconds=ttl)
                row = LeaseRow(
                    id=lease_id, trial_id=trial.id, worker=clean(worker.id), expires=expires, stage="", fraction=0.0
                )
                session.add(row)
                session.flush()
                host = clean(worker.host)
                for device in worker.devices_for(device_kind(trial)):
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
        trial: TrialRow,
        outcome: TrialOutcome,
        ending: str,
        error: str | None,
        result: RunResult | None = None,
        summary: Mapping[str, Value] | None = None,
    ) -> None:
        now = self._clock.utc()
        took = end_attempt(session, trial, ending, now)
        conclude(session, trial, outcome, now, result=result, error=error)
        said = {"outcome": outcome.value, "ran": result is not None, **clean_values(summary or {}), "seconds": took}
        self._say(session, trial, FINISHED, said)

    def _queue(self, session: Session, trial: TrialRow) -> None:
        trial.state = TrialState.QUEUED.value
        loosen(session, trial.study_id)
        self._say(session, trial, REQUEUED, {})

    def _say(self, session: Session, trial: TrialRow, kind: str, data: Mapping[str, Value]) -> None:
        text = dump_values({"trial": trial.number, **data})
        session.add(EventRow(study_id=trial.study_id, at=self._clock.utc(), kind=kind, data=text))

    def _held(self, session: Session, lease_id: str) -> TrialRow:
        """The trial of a lease, with its study locked.

        The row is the fence, not the time: a lease that is over by the clock still holds until somebody ends it.
        """
        study_id = trial_of(session, lease_row(session, lease_id)).study_id
        try:
            study = locked_study(session, study_id)
        except NotFoundError as error:
            raise gone(lease_id) from error
        session.expire_all()  # it may have ended while we waited for the study
        trial = trial_of(session, lease_row(session, lease_id))
        if trial.state != TrialState.RUNNING.value or trial.runs[-1].owner != clean(lease_id):
            raise gone(lease_id)
        study.updated = self._clock.utc()
        return trial

    def _with_lost_leases(self, now: datetime, own: str | None) -> list[str]:
        """Studies with such leases; ``own`` is that of the worker that asks, which cannot get a second one."""
        query = select(TrialRow.study_id).join(LeaseRow, LeaseRow.trial_id == TrialRow.id)
        with self._session(self._readers) as session:
            found = list(session.scalars(query.where(LeaseRow.expires <= now).distinct().limit(100)))
        return [*found, own] if own is not None and own not in found else found

    def _session(self, engine: Engine) -> AbstractContextManager[Session]:
        return session_on(engine, self.name)
