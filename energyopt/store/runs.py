"""Runs in SQL, beside the studies."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from energyopt.core.errors import NotFoundError, StoreError
from energyopt.core.runs import RunRecord

from .codec import bounded, clean
from .database import make_engine, open_store, parse_url
from .refusal import session_on
from .tables import StoredRunRow


class SqlRunStore:
    """A ``RunStore`` over an engine whose database is at this version's revision. ``name`` is how messages call it."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self.name = name

    def close(self) -> None:
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def add_run(self, run: RunRecord) -> None:
        row = StoredRunRow(
            id=clean(run.id),
            created=run.created,
            kind=clean(run.kind),
            name=clean(run.name),
            model=clean(run.model),
            valid=run.valid,
            document=clean(run.document),
        )
        with self._session("IMMEDIATE") as session:
            session.add(row)

    def run(self, run_id: str, kind: str) -> RunRecord:
        with self._session("DEFERRED") as session:
            asked = select(StoredRunRow).where(StoredRunRow.kind == kind)
            if run_id == "latest":
                rows = session.scalars(asked.order_by(StoredRunRow.sequence.desc()).limit(1)).all()
            else:
                rows = session.scalars(
                    asked.where(StoredRunRow.id.startswith(clean(run_id), autoescape=True)).limit(2)
                ).all()
            if not rows:
                raise NotFoundError(f"There is no {kind} run {run_id[:60]!r} in {self.name}.")
            if len(rows) > 1:
                raise NotFoundError(f"Several {kind} runs begin with {run_id[:60]!r}; give more of the id.")
            return _record(rows[0])

    def runs(self, kind: str, *, limit: int = 50) -> list[RunRecord]:
        with self._session("DEFERRED") as session:
            asked = select(StoredRunRow).where(StoredRunRow.kind == kind).order_by(StoredRunRow.sequence.desc())
            return [_record(row) for row in session.scalars(asked.limit(bounded(limit)))]

    def _session(self, begin: str) -> AbstractContextManager[Session]:
        return session_on(self._engine.execution_options(sqlite_begin=begin), self.name)


def open_runs(url: str) -> SqlRunStore:
    """The runs in the database at ``url``, made or migrated if need be. Raises what ``open_store`` raises."""
    with open_store(url) as store:
        name = store.name
    return SqlRunStore(make_engine(parse_url(url)), name)


def _record(row: StoredRunRow) -> RunRecord:
    try:
        return RunRecord(
            id=row.id,
            created=row.created,
            kind=row.kind,
            name=row.name,
            model=row.model,
            valid=row.valid,
            document=row.document,
        )
    except ValueError as error:
        raise StoreError(f"The stored run {row.id!r} cannot be read: {error}.") from error
