"""What the trials of labelled studies were measured to draw: energy by who asked for the work, not by where it ran."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from energyopt.core.errors import ConfigError
from energyopt.core.results import Source
from energyopt.core.units import Joules, Seconds, Watts

from .codec import clean
from .refusal import refusal
from .service_tables import JobRow, LabelRow
from .tables import EnergyRow, TrialRow

MAX_ROWS = 200_000


@dataclass(frozen=True, slots=True)
class LabelPoint:
    """Energy of one sensor over the windows of ``trials`` trials that ended within ``resolution`` seconds from ``at``.

    Time between windows, launch and warm-up included, is not in it. Errors are added: sensors of one kind err together.
    """

    device: str
    scope: str
    at: datetime
    resolution: int
    joules: Joules
    error: Joules
    covered: Seconds
    watts: Watts | None
    trials: int
    sources: tuple[Source, ...]


class LabelEnergy:
    """Reads only. Thread-safe. Raises StoreError when the database refuses."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine, self._name = engine, name

    def energy(
        self,
        label: tuple[str, str],
        start: datetime,
        end: datetime,
        *,
        resolution: int,
        device: str | None = None,
        tenant: str | None = None,
    ) -> list[LabelPoint]:
        """Points in order of time of the studies with ``label`` (of ``tenant`` alone, if given).

        Raises ConfigError for more than ``MAX_ROWS`` readings.
        """
        query = select(TrialRow.id, TrialRow.ended, EnergyRow.device, EnergyRow.scope, EnergyRow.source)
        query = query.add_columns(EnergyRow.joules, EnergyRow.error, EnergyRow.duration)
        query = query.join(EnergyRow, EnergyRow.trial_id == TrialRow.id)
        query = query.join(LabelRow, LabelRow.study_id == TrialRow.study_id)
        query = query.where(LabelRow.name == clean(label[0]), LabelRow.value == clean(label[1]))
        query = query.where(TrialRow.ended >= start, TrialRow.ended < end)
        if device is not None:
            query = query.where(EnergyRow.device == clean(device))
        if tenant is not None:
            query = query.join(JobRow, JobRow.study_id == TrialRow.study_id).where(JobRow.tenant == clean(tenant))
        try:
            with Session(self._engine) as session, session.begin():
                rows = session.execute(query.limit(MAX_ROWS + 1)).all()
        except SQLAlchemyError as error:
            raise refusal(error, self._name) from error
        if len(rows) > MAX_ROWS:
            raise ConfigError(f"The window holds more than {MAX_ROWS} readings: ask for a shorter one.")
        groups = defaultdict[tuple[float, str, str], list[tuple[int, str, float, float, float]]](list)
        for row in rows:
            reading: tuple[Any, ...] = tuple(row)
            trial, ended, name, scope, source, joules, doubt, duration = reading
            begins = math.floor(ended.timestamp() / resolution) * resolution
            groups[begins, name, scope].append((trial, source, joules, doubt, duration))
        return [_point(key, group, resolution) for key, group in sorted(groups.items())]


def _point(
    key: tuple[float, str, str], group: list[tuple[int, str, float, float, float]], resolution: int
) -> LabelPoint:
    joules, covered = math.fsum(one[2] for one in group), math.fsum(one[4] for one in group)
    found = {one[1] for one in group}
    return LabelPoint(
        device=key[1],
        scope=key[2],
        at=datetime.fromtimestamp(key[0], UTC),
        resolution=resolution,
        joules=Joules(joules),
        error=Joules(math.fsum(one[3] for one in group)),
        covered=Seconds(covered),
        watts=Watts(joules / covered) if covered > 0 else None,
        trials=len({one[0] for one in group}),
        sources=tuple(source for source in Source if source.value in found),
    )
