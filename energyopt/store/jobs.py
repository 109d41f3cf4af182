"""Submitted studies in SQL: who asked for them, and what workers may take. The studies are ``SqlStudyStore``'s."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from sqlalchemy import Engine, delete, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from energyopt.core.clock import Clock
from energyopt.core.errors import UsageError
from energyopt.core.jobs import JobRecord, Labels
from energyopt.core.study import Budget, StudySpec, StudyState, Value

from .codec import clean, clean_texts, clean_values, dump_values, load_values
from .endings import locked_study
from .refusal import session_on
from .rows import new_study, study_record
from .service_tables import IdempotencyRow, JobRow, LabelRow
from .tables import StudyRow

WORKABLE = tuple(state for state in StudyState if not state.terminal and state is not StudyState.PAUSED)
"""States in which a study waits for a worker if nobody works on it."""


class RepeatedKeyError(UsageError):
    """An Idempotency-Key that was used for another request."""

    http_status = 422


class ChangedError(UsageError):
    """What was to be changed has changed in the meantime."""

    http_status = 412


@dataclass(frozen=True, slots=True)
class Repeat:
    """The Idempotency-Key of ``owner`` and the digest of the body that came with it."""

    owner: str
    key: str
    digest: str


class SqlJobStore:
    """Every method is one transaction; raises StoreError when the database refuses, NotFoundError for unknown ids."""

    def __init__(self, engine: Engine, clock: Clock, name: str) -> None:
        self._readers = engine
        self._writers = engine.execution_options(sqlite_begin="IMMEDIATE")
        self._clock, self.name = clock, name

    def submit(
        self,
        spec: StudySpec,
        machine: Mapping[str, str],
        *,
        labels: Labels,
        tenant: str | None = None,
        by: str | None = None,
        repeat: Repeat | None = None,
    ) -> tuple[str, bool]:
        """Store a study for the workers; returns its id, and whether an earlier request with the key had made it.

        Raises RepeatedKeyError.
        """
        try:
            with self._session(self._writers) as session:
                if repeat is not None and (made := self._made(session, repeat)) is not None:
                    return made, True
                return self._insert(session, spec, machine, labels, tenant, by, repeat), False
        except IntegrityError:  # PostgreSQL: another process used the key between our look and our insert
            made = None if repeat is None else self.repeated(repeat)
            if made is None:
                raise
            return made, True

    def repeated(self, repeat: Repeat) -> str | None:
        """The study that an earlier request with this key made. Raises RepeatedKeyError if its body was another."""
        with self._session(self._readers) as session:
            return self._made(session, repeat)

    def job(self, study_id: str) -> JobRecord:
        with self._session(self._readers) as session:
            return self._record(session, study_id)

    def change(self, study_id: str, revision: int, *, budget: Budget | None, labels: Labels | None) -> JobRecord:
        """Set budget and labels if the job is still of ``revision``. Raises ChangedError."""
        with self._session(self._writers) as session:
            row = locked_study(session, study_id)
            job = session.get(JobRow, row.id)
            if job is None:  # a study of the command line becomes one of the service without being given to workers
                raise UsageError(f"Study {study_id} was not submitted to the service, so it cannot be changed here.")
            if job.revision != revision:
                raise ChangedError(f"Study {study_id} is at revision {job.revision}, not {revision}: read it again.")
            job.revision += 1
            row.updated = self._clock.utc()
            if budget is not None:
                spec = study_record(row).spec.model_copy(update={"budget": budget})
                row.spec = spec.model_dump_json()
            if labels is not None:
                session.execute(delete(LabelRow).where(LabelRow.study_id == row.id))
                session.add_all(_labels(row.id, labels))
            session.flush()
            return self._record(session, row.id)

    def note_progress(self, study_id: str, progress: Mapping[str, Value]) -> None:
        """The last word of whoever works on the study; no effect on one that was not submitted."""
        text = dump_values(clean_values(progress))
        with self._session(self._writers) as session:
            session.execute(update(JobRow).where(JobRow.study_id == clean(study_id)).values(progress=text))

    def waiting(self) -> list[str]:
        """Studies that nobody works on and somebody should, the oldest first."""
        free = or_(StudyRow.owner.is_(None), StudyRow.lease_until <= self._clock.utc())
        chosen = select(StudyRow.id).join(JobRow, JobRow.study_id == StudyRow.id)
        chosen = chosen.where(free, StudyRow.state.in_([state.value for state in WORKABLE]))
        with self._session(self._readers) as session:
            return list(session.scalars(chosen.order_by(StudyRow.sequence).limit(100)))

    def remove(self, study_id: str) -> None:
        """Delete a study with everything in the database that belongs to it, if it has ended.

        Raises UsageError (409) while it has not.
        """
        with self._session(self._writers) as session:
            row = locked_study(session, study_id)
            if not StudyState(row.state).terminal:
                raise NotEndedError(f"Study {study_id} is {row.state}: cancel it before it is deleted.")
            session.execute(delete(StudyRow).where(StudyRow.id == row.id))

    def _insert(
        self,
        session: Session,
        spec: StudySpec,
        machine: Mapping[str, str],
        labels: Labels,
        tenant: str | None,
        by: str | None,
        repeat: Repeat | None,
    ) -> str:
        now = self._clock.utc()
        row = new_study(spec, machine, now)
        session.add(row)
        session.flush()
        session.add(JobRow(study_id=row.id, tenant=tenant, submitted_by=by, revision=1))
        session.add_all(_labels(row.id, labels))
        if repeat is not None:
            session.add(
                IdempotencyRow(owner=repeat.owner, key=repeat.key, digest=repeat.digest, study_id=row.id, created=now)
            )
        session.flush()
        return row.id

    def _made(self, session: Session, repeat: Repeat) -> str | None:
        found = session.get(IdempotencyRow, (repeat.owner, repeat.key))
        if found is None:
            return None
        if found.digest != repeat.digest:
            raise RepeatedKeyError("The Idempotency-Key was used for another request: take a new key for a new study.")
        return found.study_id

    def _record(self, session: Session, study_id: str) -> JobRecord:
        job = session.get(JobRow, clean(study_id))
        if job is None:
            return JobRecord(study_id=study_id)
        labels = session.execute(select(LabelRow.name, LabelRow.value).where(LabelRow.study_id == job.study_id))
        return JobRecord(
            study_id=job.study_id,
            tenant=job.tenant,
            submitted_by=job.submitted_by,
            labels={row.name: row.value for row in labels},
            revision=job.revision,
            progress=None if job.progress is None else load_values(job.progress),
        )

    def _session(self, engine: Engine) -> AbstractContextManager[Session]:
        return session_on(engine, self.name, passing=(IntegrityError,))


class NotEndedError(UsageError):
    """Something that can only be done to a study that has ended."""

    http_status = 409


def _labels(study_id: str, labels: Labels) -> list[LabelRow]:
    return [LabelRow(study_id=study_id, name=name, value=value) for name, value in clean_texts(labels).items()]
