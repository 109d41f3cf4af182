"""Rows to records and back. Reading raises StoreError for a document that this version does not understand."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TypeVar

from energyopt.core.config import Deployment
from energyopt.core.errors import StoreError
from energyopt.core.results import RunResult
from energyopt.core.study import (
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
)

from .codec import clean_texts, dump_values, load_texts, load_values
from .metrics import metrics_of
from .tables import ArtifactRow, EnergyRow, EventRow, MetricRow, StudyRow, TrialRow

COPIED_METRICS = ("tokens_per_joule", "output_rate", "ttft_p90", "itl_p99", "tpot_p90")
"""Metrics that are columns of the trial as well."""

R = TypeVar("R")
T = TypeVar("T")


def new_study(spec: StudySpec, machine: Mapping[str, str], now: datetime) -> StudyRow:
    """The row of a study that is about to be stored, under an id of its own."""
    return StudyRow(
        id=secrets.token_hex(6),
        name=spec.name,
        model=spec.baseline.decode.engine.model,
        state=StudyState.QUEUED.value,
        created=now,
        updated=now,
        spec=spec.model_dump_json(),
        machine=dump_values(clean_texts(machine)),
        slos=json.dumps(spec.slos),
        maximize=spec.maximize,
    )


def study_record(row: StudyRow) -> StudyRecord:
    return _understood(f"Study {row.id}", row, _study_record)


def trial_record(row: TrialRow) -> TrialRecord:
    return _understood(f"Trial {row.number} of study {row.study_id}", row, _trial_record)


def event_record(row: EventRow) -> Event:
    return _understood(f"Event {row.id} of study {row.study_id}", row, _event_record)


def artifact_record(row: ArtifactRow) -> Artifact:
    return Artifact(name=row.name, path=row.path, media_type=row.media_type, sha256=row.sha256, bytes=row.bytes)


def put_result(row: TrialRow, result: RunResult) -> None:
    """The result of a trial: the document, and beside it the rows and columns that are asked for by SQL."""
    row.result = result.model_dump_json()
    row.simulated = result.simulated
    row.energy_source = result.energy.label if result.energy and result.power_valid else None
    metrics = metrics_of(result)
    row.metrics = [MetricRow(name=name, value=value) for name, value in metrics.items()]
    for name in COPIED_METRICS:
        setattr(row, name, metrics.get(name))
    row.energy = [
        EnergyRow(
            position=position,
            device=reading.device,
            scope=reading.scope.value,
            source=reading.source.value,
            joules=reading.joules,
            error=reading.error,
            duration=reading.window,
        )
        for position, reading in enumerate(result.readings)
    ]


def _understood(what: str, row: R, read: Callable[[R], T]) -> T:
    try:
        return read(row)
    except ValueError as error:  # pydantic's and json's errors are ValueErrors, and so is an unknown word of an enum
        raise StoreError(f"{what} cannot be read: it was stored by another version of energyopt.") from error


def _study_record(row: StudyRow) -> StudyRecord:
    found = row.recommendation
    return StudyRecord(
        id=row.id,
        spec=StudySpec.model_validate_json(row.spec),
        state=StudyState(row.state),
        created=row.created,
        updated=row.updated,
        machine=load_texts(row.machine),
        recommendation=None if found is None else Recommendation.model_validate_json(found),
        error=row.error,
        owner=row.owner,
        lease_until=row.lease_until,
    )


def _trial_record(row: TrialRow) -> TrialRecord:
    return TrialRecord(
        number=row.number,
        origin=Origin(row.origin),
        params=load_values(row.params),
        deployment=Deployment.model_validate_json(row.deployment),
        state=TrialState(row.state),
        outcome=None if row.outcome is None else TrialOutcome(row.outcome),
        result=None if row.result is None else RunResult.model_validate_json(row.result),
        error=row.error,
        pair=row.pair,
        attempts=row.attempts,
        created=row.created,
        ended=row.ended,
    )


def _event_record(row: EventRow) -> Event:
    return Event(id=row.id, at=row.at, kind=row.kind, data=load_values(row.data))
