"""Pareto fronts of studies, kept as their trials end: asked for often, and of a large study found slowly.

A front changes by one trial at a time: a new one is beaten by a trial of the front, or joins it and ousts what it
beats. That takes a look at the front alone, and no comparison of all trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Literal, get_args

from sqlalchemy import ColumnElement, and_, delete, exists, insert, select
from sqlalchemy.orm import Session

from energyopt.core.study import Origin, TrialOutcome

from .service_tables import FrontRow
from .tables import TrialRow

Benefit = Literal["tokens_per_joule", "output_rate"]
Latency = Literal["tpot_p90", "ttft_p90", "itl_p99"]
Pair = tuple[Benefit, Latency]
PAIRS: tuple[Pair, ...] = tuple(product(get_args(Benefit), get_args(Latency)))
REPETITIONS = tuple(origin.value for origin in Origin if origin.repeats)


def offer(session: Session, row: TrialRow) -> None:
    """A trial has ended: it joins every front on which no earlier one beats it, or equals it.

    The caller holds the study, so that two trials never join at once. A configuration that missed an SLO, or failed,
    when it was measured again leaves them, and what it had ousted may come back.
    """
    if row.origin in REPETITIONS and row.outcome != TrialOutcome.FEASIBLE.value:
        rebuild(session, row.study_id)
        return
    if _missed_before(session, row):
        return
    for pair, benefit, latency in _figures(row):
        of_pair = _of(row.study_id, pair)
        as_good = and_(*of_pair, FrontRow.y <= latency, FrontRow.x >= benefit)
        equal_but_later = and_(FrontRow.y == latency, FrontRow.x == benefit, FrontRow.number > row.number)
        if session.scalar(select(exists().where(as_good, ~equal_but_later))):
            continue
        session.execute(delete(FrontRow).where(*of_pair, FrontRow.y >= latency, FrontRow.x <= benefit))
        session.execute(insert(FrontRow).values(_values(row, pair, benefit, latency)))


def rebuild(session: Session, study_id: str) -> None:
    """The slow twin: every front of a study from all of its trials."""
    session.execute(delete(FrontRow).where(FrontRow.study_id == study_id))
    every = session.scalars(select(TrialRow).where(TrialRow.study_id == study_id)).all()
    missed = {row.deployment_digest for row in every if _misses(row)}
    rows = [row for row in every if row.deployment_digest not in missed]
    found = [(pair, latency, -benefit, row.number, row) for row in rows for pair, benefit, latency in _figures(row)]
    for pair in PAIRS:
        best: float | None = None
        for _, latency, negative, _, row in sorted((one for one in found if one[0] == pair), key=lambda one: one[1:4]):
            if best is None or -negative > best:
                best = -negative
                session.execute(insert(FrontRow).values(_values(row, pair, best, latency)))


def members(study_id: str, benefit: Benefit, latency: Latency) -> ColumnElement[bool]:
    """The trials of a front."""
    numbers = select(FrontRow.number).where(*_of(study_id, (benefit, latency)))
    return and_(TrialRow.study_id == study_id, TrialRow.number.in_(numbers))


def _missed_before(session: Session, row: TrialRow) -> bool:
    """Whether a repetition of the same configuration has missed an SLO already: a lost trial may end after it."""
    same = (TrialRow.study_id == row.study_id, TrialRow.deployment_digest == row.deployment_digest)
    missed = (TrialRow.origin.in_(REPETITIONS), TrialRow.outcome != TrialOutcome.FEASIBLE.value)
    return bool(session.scalar(select(exists().where(*same, *missed))))


def _misses(row: TrialRow) -> bool:
    """Whether a repetition has ended without keeping every SLO."""
    return row.origin in REPETITIONS and row.outcome not in (None, TrialOutcome.FEASIBLE.value)


def _figures(row: TrialRow) -> Iterator[tuple[Pair, float, float]]:
    if row.outcome != TrialOutcome.FEASIBLE.value or row.origin in REPETITIONS:
        return
    for pair in PAIRS:
        benefit, latency = (getattr(row, name) for name in pair)
        if _known((benefit, latency)):
            yield pair, benefit, latency


def _known(figures: Iterable[float | None]) -> bool:
    """Neither unknown nor endless."""
    return all(figure is not None and math.isfinite(figure) for figure in figures)


def _of(study_id: str, pair: Pair) -> tuple[ColumnElement[bool], ...]:
    return FrontRow.study_id == study_id, FrontRow.benefit == pair[0], FrontRow.latency == pair[1]


def _values(row: TrialRow, pair: Pair, benefit: float, latency: float) -> dict[str, object]:
    where = {"study_id": row.study_id, "benefit": pair[0], "latency": pair[1]}
    return {**where, "number": row.number, "x": benefit, "y": latency}
