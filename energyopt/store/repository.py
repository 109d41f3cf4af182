"""Studies in SQL: the ``StudyStore`` that keeps what it was told through a ``kill -9``.

Every method is one transaction. One that writes takes the study's row first (SQLite: the whole database), so trial
numbers have no gaps, the events of a study become visible in the order of their ids, and no two workers both win.
Leases compare against the clock of the process that asks, so machines that share a database must agree on the time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

from sqlalchemy import Engine, func, or_, select, update
from sqlalchemy.orm import Session

from energyopt.core.clock import Clock
from energyopt.core.config import Deployment
from energyopt.core.errors import HeldError, NotFoundError, StoreError
from energyopt.core.results import RunResult
from energyopt.core.study import (
    STATE_EVENT,
    Artifact,
    Event,
    Origin,
    Recommendation,
    StudyRecord,
    StudySpec,
    StudyState,
    TrialOutcome,
    TrialRecord,
    TrialState,
    Value,
)
from energyopt.core.units import Seconds

from .codec import bounded, clean, clean_optional, clean_values, dump_values
from .endings import conclude, end_attempt, locked_study
from .refusal import session_on
from .rows import artifact_record, event_record, new_study, study_record, trial_record
from .tables import ArtifactRow, AttemptRow, EventRow, StudyRow, TrialRow


class SqlStudyStore:
    """A ``StudyStore`` over an engine whose database is at this version's revision (``open_store`` sees to that).

    Threads may share it; a forked child gets connections of its own. ``name`` is how messages call the database.
    """

    def __init__(self, engine: Engine, clock: Clock, name: str) -> None:
        self._readers = engine
        self._writers = engine.execution_options(sqlite_begin="IMMEDIATE")
        self._clock = clock
        self.name = name

    def close(self) -> None:
        """Close all connections. The store may be used again and then opens new ones."""
        self._readers.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def create_study(self, spec: StudySpec, machine: Mapping[str, str]) -> StudyRecord:
        row = new_study(spec, machine, self._clock.utc())
        with self._writing() as session:
            session.add(row)
            session.flush()
            return study_record(row)

    def study(self, study_id: str) -> StudyRecord:
        newest_first = select(StudyRow).order_by(StudyRow.sequence.desc())
        with self._reading() as session:
            if study_id == "latest":
                row = session.scalars(newest_first.limit(1)).first()
                if row is None:
                    raise NotFoundError(f"There is no latest study: the database {self.name} holds none.")
                return study_record(row)
            # LIKE would ignore case on SQLite and take % and _ for wildcards.
            starts = func.substr(StudyRow.id, 1, len(study_id)) == clean(study_id)
            rows = session.scalars(newest_first.where(starts).limit(1000)).all() if study_id else []
            exact = [row for row in rows if row.id == study_id]
            return study_record(_only(exact or rows, study_id))

    def studies(self, *, limit: int = 50) -> list[StudyRecord]:
        with self._reading() as session:
            rows = session.scalars(select(StudyRow).order_by(StudyRow.sequence.desc()).limit(bounded(limit)))
            return [study_record(row) for row in rows]

    def claim(self, study_id: str, owner: str, ttl: Seconds) -> None:
        owner, now = clean(owner), self._clock.utc()
        free = or_(StudyRow.owner.is_(None), StudyRow.owner == owner, StudyRow.lease_until <= now)
        take = update(StudyRow).where(StudyRow.id == clean(study_id), free)
        take = take.values(owner=owner, lease_until=now + timedelta(seconds=ttl)).returning(StudyRow.id)
        with self._writing() as session:
            if session.execute(take).first() is None:
                held = locked_study(session, study_id)
                raise HeldError(f"Study {study_id} is being worked on by {held.owner} until {held.lease_until}.")

    def release(self, study_id: str, owner: str) -> None:
        with self._writing() as session:
            row = locked_study(session, study_id)
            if row.owner == clean(owner):
                row.owner = row.lease_until = None

    def set_state(self, study_id: str, state: StudyState, *, error: str | None = None) -> None:
        with self._writing() as session:
            row = self._touched(session, study_id)
            row.state, row.error = state.value, clean_optional(error)

    def change_state(
        self, study_id: str, state: StudyState, *, when: Collection[StudyState], error: str | None = None
    ) -> bool:
        with self._writing() as session:
            row = locked_study(session, study_id)
            if row.state not in {allowed.value for allowed in when}:
                return False
            row.state, row.error, row.updated = state.value, clean_optional(error), self._clock.utc()
            said = dump_values({"state": row.state, "error": row.error})
            session.add(EventRow(study_id=study_id, at=row.updated, kind=STATE_EVENT, data=said))
            return True

    def recommend(self, study_id: str, recommendation: Recommendation) -> None:
        with self._writing() as session:
            row = self._touched(session, study_id)
            row.state, row.error = StudyState.SUCCEEDED.value, None
            row.recommendation = recommendation.model_dump_json()

    def add_trial(
        self,
        study_id: str,
        params: Mapping[str, Value],
        deployment: Deployment,
        origin: Origin,
        pair: int | None = None,
    ) -> TrialRecord:
        with self._writing() as session:
            study = self._touched(session, study_id)
            last = session.scalar(select(func.max(TrialRow.number)).where(TrialRow.study_id == study_id))
            row = TrialRow(
                study_id=study_id,
                number=0 if last is None else last + 1,
                origin=origin.value,
                pair=pair,
                state=TrialState.QUEUED.value,
                attempts=0,
                created=study.updated,
                deployment_digest=deployment.digest(),
                params=dump_values(clean_values(params)),
                deployment=deployment.model_dump_json(),
            )
            session.add(row)
            session.flush()
            return trial_record(row)

    def start_attempt(self, study_id: str, number: int, owner: str) -> None:
        with self._writing() as session:
            row, now = self._trial(session, study_id, number, TrialState.QUEUED)
            row.state, row.attempts = TrialState.RUNNING.value, row.attempts + 1
            row.runs.append(AttemptRow(number=row.attempts, owner=clean(owner), started=now))

    def finish_trial(
        self,
        study_id: str,
        number: int,
        outcome: TrialOutcome,
        *,
        result: RunResult | None = None,
        error: str | None = None,
    ) -> TrialRecord:
        with self._writing() as session:
            row, now = self._trial(session, study_id, number, TrialState.RUNNING)
            end_attempt(session, row, "finished", now)
            conclude(session, row, outcome, now, result=result, error=error)
            return trial_record(row)

    def requeue_lost(self, study_id: str, owner: str) -> list[int]:
        with self._writing() as session:
            now = self._touched(session, study_id).updated
            running = select(TrialRow).where(TrialRow.study_id == study_id, TrialRow.state == TrialState.RUNNING.value)
            trials = session.scalars(running.order_by(TrialRow.number)).all()
            lost = [trial for trial in trials if trial.runs[-1].owner != clean(owner)]
            for trial in lost:
                trial.state = TrialState.QUEUED.value
                end_attempt(session, trial, "lost", now)
            return [trial.number for trial in lost]

    def trials(self, study_id: str) -> list[TrialRecord]:
        with self._reading() as session:
            self._found(session, study_id)
            rows = session.scalars(select(TrialRow).where(TrialRow.study_id == study_id).order_by(TrialRow.number))
            return [trial_record(row) for row in rows]

    def add_event(self, study_id: str, kind: str, data: Mapping[str, Value]) -> Event:
        with self._writing() as session:
            locked_study(session, study_id)
            text = dump_values(clean_values(data))
            row = EventRow(study_id=study_id, at=self._clock.utc(), kind=clean(kind), data=text)
            session.add(row)
            session.flush()
            return event_record(row)

    def events(self, study_id: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        chosen = select(EventRow).where(EventRow.study_id == study_id, EventRow.id > bounded(after, 2**63 - 1))
        with self._reading() as session:
            self._found(session, study_id)
            return [event_record(row) for row in session.scalars(chosen.order_by(EventRow.id).limit(bounded(limit)))]

    def add_artifact(self, study_id: str, artifact: Artifact) -> None:
        with self._writing() as session:
            locked_study(session, study_id)
            session.merge(ArtifactRow(study_id=study_id, **artifact.model_dump()))

    def artifacts(self, study_id: str) -> list[Artifact]:
        with self._reading() as session:
            self._found(session, study_id)
            rows = session.scalars(
                select(ArtifactRow).where(ArtifactRow.study_id == study_id).order_by(ArtifactRow.name)
            )
            return [artifact_record(row) for row in rows]

    def _reading(self) -> AbstractContextManager[Session]:
        return session_on(self._readers, self.name)

    def _writing(self) -> AbstractContextManager[Session]:
        return session_on(self._writers, self.name)

    def _touched(self, session: Session, study_id: str) -> StudyRow:
        row = locked_study(session, study_id)
        row.updated = self._clock.utc()
        return row

    def _found(self, session: Session, study_id: str) -> StudyRow:
        return _existing(session.scalar(select(StudyRow).where(StudyRow.id == clean(study_id))), study_id)

    def _trial(self, session: Session, study_id: str, number: int, state: TrialState) -> tuple[TrialRow, datetime]:
        """The trial, if it is in ``state``, and the time of the change that is about to happen to it."""
        now = self._touched(session, study_id).updated
        chosen = select(TrialRow).where(TrialRow.study_id == study_id, TrialRow.number == bounded(number))
        row = session.scalar(chosen) if number == bounded(number) else None
        if row is None:
            raise NotFoundError(f"Study {study_id} has no trial {number}.")
        if row.state != state.value:
            raise StoreError(f"Trial {number} of study {study_id} is {row.state}, not {state.value}.")
        return row, now


def _existing(row: StudyRow | None, study_id: str) -> StudyRow:
    if row is None:
        raise NotFoundError(f"There is no study {study_id!r}.")
    return row


def _only(rows: Sequence[StudyRow], study_id: str) -> StudyRow:
    if len(rows) > 1:
        some = ", ".join(row.id for row in rows[:5])
        raise NotFoundError(f"{study_id!r} is the beginning of several studies ({some}): give more of the id.")
    return _existing(rows[0] if rows else None, study_id)
