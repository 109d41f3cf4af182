"""Lists of studies and trials a page at a time, and Pareto fronts, without reading the documents behind them.

A page goes on after the last row of the one before it, so rows that come or go in between neither repeat nor hide one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import ColumnElement, Engine, and_, func, literal, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from energyopt.core.errors import NotFoundError
from energyopt.core.jobs import StudyFilter, StudyLine, TrialFilter, TrialLine, TrialOrder
from energyopt.core.study import Origin, Recommendation, StudyState, TrialRecord, TrialState

from .codec import bounded, clean, load_values
from .fronts import Benefit, Latency, members
from .refusal import session_on
from .rows import trial_record
from .service_tables import JobRow, LabelRow
from .tables import MetricRow, StudyRow, TrialRow

After = tuple[float | None, int]
"""The last trial of a page: what it was sorted by, and its number."""


class SqlPages:
    """Reads only. Thread-safe. Raises StoreError when the database refuses."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine, self._name = engine, name

    def studies(self, chosen: StudyFilter, *, limit: int, before: int | None = None) -> list[StudyLine]:
        """Newest first, from the one before the sequence number ``before``."""
        query = select(StudyRow.sequence, StudyRow.id, StudyRow.name, StudyRow.model, StudyRow.state)
        query = query.add_columns(StudyRow.created, StudyRow.updated, StudyRow.error, StudyRow.recommendation)
        query = query.add_columns(StudyRow.slos, StudyRow.maximize, JobRow.tenant, JobRow.progress)
        query = query.outerjoin(JobRow, JobRow.study_id == StudyRow.id).where(*_study_conditions(chosen))
        if before is not None:
            query = query.where(StudyRow.sequence < before)
        with self._reading() as session:
            rows = session.execute(query.order_by(StudyRow.sequence.desc()).limit(bounded(limit))).all()
            labels = _labels(session, [row.id for row in rows])
            return [_study_line(row, labels.get(row.id, {})) for row in rows]

    def trials(self, study_id: str, chosen: TrialFilter, *, limit: int, after: After | None = None) -> list[TrialLine]:
        """In the asked order, from the one after ``after``; trials without the figure are not in an order by it."""
        query = select(*_TRIAL_COLUMNS).where(TrialRow.study_id == clean(study_id))
        if chosen.states:
            query = query.where(TrialRow.state.in_([state.value for state in chosen.states]))
        if chosen.outcomes:
            query = query.where(TrialRow.outcome.in_([clean(outcome) for outcome in chosen.outcomes]))
        query = _sorted(query, chosen.order, after)
        with self._reading() as session:
            self._require(session, study_id)
            return [_trial_line(row) for row in session.execute(query.limit(bounded(limit)))]

    def trial(self, study_id: str, number: int) -> TrialRecord:
        """One trial with everything. Raises NotFoundError."""
        found = self._records(study_id, TrialRow.number == bounded(number), limit=1)
        if not found or found[0].number != number:
            raise NotFoundError(f"Study {study_id[:60]} has no trial {number}.")
        return found[0]

    def evidence(self, study_id: str, chosen: int | None) -> list[TrialRecord]:
        """The trial ``chosen``, the baseline and the runs of the verification, with everything."""
        what = [Origin.BASELINE.value, Origin.VERIFY_WINNER.value, Origin.VERIFY_BASELINE.value]
        counts = TrialRow.origin.in_(what)
        return self._records(study_id, counts if chosen is None else or_(counts, TrialRow.number == chosen))

    def nearest(self, study_id: str, *, limit: int = 3) -> list[TrialRecord]:
        """The trials that miss their SLOs by least, the nearest first."""
        near = select(TrialRow).join(MetricRow, MetricRow.trial_id == TrialRow.id)
        near = near.where(TrialRow.study_id == clean(study_id), MetricRow.name == "slo_violation")
        with self._reading() as session:
            rows = session.scalars(near.order_by(MetricRow.value, TrialRow.number).limit(bounded(limit)))
            return [trial_record(row) for row in rows]

    def counts(self, study_id: str) -> dict[str, int]:
        """Trials by outcome, and by state where there is none yet."""
        found: dict[str, int] = {}
        with self._reading() as session:  # by outcome first, which an index answers alone
            for what, done in ((TrialRow.outcome, True), (TrialRow.state, False)):
                which = TrialRow.outcome.is_not(None) if done else TrialRow.outcome.is_(None)
                query = select(what, func.count()).where(TrialRow.study_id == clean(study_id), which).group_by(what)
                found |= {str(row[0]): int(row[1]) for row in session.execute(query)}
        return found

    def _records(self, study_id: str, which: ColumnElement[bool], limit: int | None = None) -> list[TrialRecord]:
        query = select(TrialRow).where(TrialRow.study_id == clean(study_id), which).order_by(TrialRow.number)
        with self._reading() as session:
            self._require(session, study_id)
            return [trial_record(row) for row in session.scalars(query.limit(limit))]

    def front(self, study_id: str, benefit: Benefit, latency: Latency, *, limit: int = 10_000) -> list[TrialLine]:
        """Feasible trials that no other beats in both, by growing latency: each has more benefit than all before it.

        Repetitions are not on it.
        """
        query = select(*_TRIAL_COLUMNS).where(members(clean(study_id), benefit, latency))
        with self._reading() as session:
            self._require(session, study_id)
            lines = [_trial_line(row) for row in session.execute(query)]
        return sorted(lines, key=lambda line: float(getattr(line, latency)))[:limit]

    def _require(self, session: Session, study_id: str) -> None:
        if session.scalar(select(literal(1)).where(StudyRow.id == clean(study_id))) is None:
            raise NotFoundError(f"There is no study {study_id[:60]!r}.")

    def _reading(self) -> AbstractContextManager[Session]:
        return session_on(self._engine, self._name)


_TRIAL_COLUMNS = (
    TrialRow.number,
    TrialRow.origin,
    TrialRow.state,
    TrialRow.outcome,
    TrialRow.params,
    TrialRow.error,
    TrialRow.tokens_per_joule,
    TrialRow.output_rate,
    TrialRow.ttft_p90,
    TrialRow.itl_p99,
    TrialRow.tpot_p90,
    TrialRow.energy_source,
    TrialRow.simulated,
    TrialRow.created,
    TrialRow.ended,
)


def _study_conditions(chosen: StudyFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if chosen.states:
        conditions.append(StudyRow.state.in_([state.value for state in chosen.states]))
    if chosen.tenant is not None:
        conditions.append(JobRow.tenant == clean(chosen.tenant))
    if chosen.model is not None:
        conditions.append(StudyRow.model == clean(chosen.model))
    for name, value in chosen.labels.items():
        having = select(LabelRow.study_id).where(LabelRow.name == clean(name), LabelRow.value == clean(value))
        conditions.append(StudyRow.id.in_(having))
    return conditions


def _sorted(query: Any, order: TrialOrder, after: After | None) -> Any:
    if order is TrialOrder.NUMBER:
        later = query if after is None else query.where(TrialRow.number > after[1])
        return later.order_by(TrialRow.number)
    figure: InstrumentedAttribute[float] = getattr(TrialRow, order.value)
    query = query.where(figure.is_not(None))
    if after is not None:
        beyond = figure < after[0] if order.descending else figure > after[0]
        query = query.where(or_(beyond, and_(figure == after[0], TrialRow.number > after[1])))
    return query.order_by(figure.desc() if order.descending else figure, TrialRow.number)


def _labels(session: Session, study_ids: Sequence[str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    query = select(LabelRow.study_id, LabelRow.name, LabelRow.value).where(LabelRow.study_id.in_(study_ids))
    for study_id, name, value in session.execute(query):
        found.setdefault(study_id, {})[name] = value
    return found


def _study_line(row: Any, labels: dict[str, str]) -> StudyLine:
    found = row.recommendation
    return StudyLine(
        sequence=row.sequence,
        id=row.id,
        name=row.name,
        model=row.model,
        state=StudyState(row.state),
        created=row.created,
        updated=row.updated,
        slos=tuple(json.loads(row.slos or "[]")),
        maximize=row.maximize or "tokens_per_joule",
        error=row.error,
        recommendation=None if found is None else Recommendation.model_validate_json(found),
        tenant=row.tenant,
        labels=labels,
        progress=None if row.progress is None else load_values(row.progress),
    )


def _trial_line(row: Any) -> TrialLine:
    values = dict(row._mapping) | {"params": load_values(row.params), "state": TrialState(row.state)}
    return TrialLine.model_validate(values)
