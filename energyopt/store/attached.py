"""Trials that were measured elsewhere: stored done, in one transaction, so that no worker ever sees them waiting."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from energyopt.core.clock import Clock
from energyopt.core.config import Deployment
from energyopt.core.leases import FINISHED
from energyopt.core.results import RunResult
from energyopt.core.study import Origin, TrialOutcome, TrialRecord, TrialState, Value

from .codec import clean_values, dump_values
from .endings import conclude, locked_study
from .refusal import session_on
from .rows import trial_record
from .tables import EventRow, TrialRow


class SqlAttachedTrials:
    """Raises StoreError when the database refuses, NotFoundError for an unknown study."""

    def __init__(self, engine: Engine, clock: Clock, name: str) -> None:
        self._writers = engine.execution_options(sqlite_begin="IMMEDIATE")
        self._clock, self.name = clock, name

    def attach(
        self,
        study_id: str,
        params: Mapping[str, Value],
        deployment: Deployment,
        outcome: TrialOutcome,
        *,
        result: RunResult | None = None,
        error: str | None = None,
        summary: Mapping[str, Value] | None = None,
    ) -> TrialRecord:
        """A trial of a person, done, without an attempt of ours; its event holds ``summary`` and no duration."""
        with self._session() as session:
            study = locked_study(session, study_id)
            now = study.updated = self._clock.utc()
            last = session.scalar(select(func.max(TrialRow.number)).where(TrialRow.study_id == study.id))
            row = TrialRow(
                study_id=study.id,
                number=0 if last is None else last + 1,
                origin=Origin.USER.value,
                state=TrialState.DONE.value,
                attempts=0,
                created=now,
                deployment_digest=deployment.digest(),
                params=dump_values(clean_values(params)),
                deployment=deployment.model_dump_json(),
            )
            session.add(row)
            conclude(session, row, outcome, now, result=result, error=error)
            said = {"trial": row.number, "outcome": outcome.value, "attached": True, **clean_values(summary or {})}
            session.add(EventRow(study_id=study.id, at=now, kind=FINISHED, data=dump_values(said)))
            session.flush()
            return trial_record(row)

    def _session(self) -> AbstractContextManager[Session]:
        return session_on(self._writers, self.name)
