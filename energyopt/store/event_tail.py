"""New events of many studies at once: what a process that streams them to watchers asks again and again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Engine, func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from energyopt.core.study import Event, StudyState

from .refusal import refusal
from .rows import event_record
from .service_tables import JobRow
from .tables import EventRow, StudyRow

PAGE = 2000


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a study stands; ``progress`` is JSON as the worker wrote it."""

    state: StudyState
    progress: str | None


class EventTail:
    """Reads only. Thread-safe. Raises StoreError when the database refuses.

    Each study is read on from its own last event: within a study events become visible in the order of their ids,
    between studies they do not, so one mark for all could pass over an event that is still being written.
    """

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine, self._name = engine, name

    def after(self, marks: Mapping[str, int]) -> tuple[dict[str, list[Event]], dict[str, Standing]]:
        """The events of each study after its mark (at most ``PAGE`` each), and where the studies stand.

        Standings are read first: a study seen as ended has no event that a later call would find first.
        """
        try:
            with Session(self._engine) as session, session.begin():
                standings = self._standings(session, list(marks))
                found = {study: self._events(session, study, mark) for study, mark in marks.items()}
                return {study: events for study, events in found.items() if events}, standings
        except SQLAlchemyError as error:
            raise refusal(error, self._name) from error

    def last(self, study_id: str) -> int:
        """The id of the study's newest event, 0 without any."""
        query = select(func.max(EventRow.id)).where(EventRow.study_id == study_id)
        try:
            with Session(self._engine) as session, session.begin():
                return session.scalar(query) or 0
        except SQLAlchemyError as error:
            raise refusal(error, self._name) from error

    def _events(self, session: Session, study_id: str, mark: int) -> list[Event]:
        chosen = select(EventRow).where(EventRow.study_id == study_id, EventRow.id > mark)
        return [event_record(row) for row in session.scalars(chosen.order_by(EventRow.id).limit(PAGE))]

    def _standings(self, session: Session, studies: list[str]) -> dict[str, Standing]:
        query = select(StudyRow.id, StudyRow.state, JobRow.progress)
        query = query.outerjoin(JobRow, JobRow.study_id == StudyRow.id).where(StudyRow.id.in_(studies))
        return {row[0]: Standing(StudyState(row[1]), row[2]) for row in session.execute(query)}
