"""What clients see of a study."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from energyopt.core.jobs import JobRecord, Labels, StudyLine, TrialLine
from energyopt.core.results import Result
from energyopt.core.study import Budget, MeasurePlan, Recommendation, Space, StudyRecord, StudyState, Value


class StudyView(Result):
    """A study without its texts. ``revision`` is what ``If-Match`` of a change must name (as ETag ``"rN"``)."""

    id: str
    name: str
    model: str
    state: StudyState
    created: datetime
    updated: datetime
    slos: tuple[str, ...]
    maximize: str
    budget: Budget
    plan: MeasurePlan
    space: Space
    machine: Mapping[str, str]
    tenant: str | None
    labels: Labels
    revision: int
    progress: Mapping[str, Value] | None
    trials: Mapping[str, int]
    recommendation: Recommendation | None
    error: str | None
    worker: str | None
    links: Mapping[str, str]


class StudyPage(Result):
    """``next`` is the cursor of the following page, None on the last."""

    items: tuple[StudyLine, ...]
    next: str | None


class TrialPage(Result):
    """``next`` is the cursor of the following page, None on the last."""

    items: tuple[TrialLine, ...]
    next: str | None


class FrontView(Result):
    """Feasible trials that no other beats in both ``x`` (more is better) and ``y`` (seconds, less is better)."""

    x: str
    y: str
    items: tuple[TrialLine, ...]


class RecommendationView(Result):
    """What to run, against what it was compared, and how to start it. ``command`` is None where no single one can."""

    recommendation: Recommendation
    params: Mapping[str, Value]
    deployment: dict[str, Any]
    trial: TrialLine
    baseline: TrialLine | None


def study_view(study: StudyRecord, job: JobRecord, trials: Mapping[str, int]) -> StudyView:
    spec, here = study.spec, f"/v1/studies/{study.id}"
    places = ("trials", "pareto", "recommendation", "manifest", "events", "logs", "artifacts")
    return StudyView(
        id=study.id,
        name=spec.name,
        model=spec.baseline.decode.engine.model,
        state=study.state,
        created=study.created,
        updated=study.updated,
        slos=spec.slos,
        maximize=spec.maximize,
        budget=spec.budget,
        plan=spec.plan,
        space=spec.space,
        machine=study.machine,
        tenant=job.tenant,
        labels=job.labels,
        revision=job.revision,
        progress=job.progress,
        trials=trials,
        recommendation=study.recommendation,
        error=study.error,
        worker=study.owner,
        links={"self": here, **{place: f"{here}/{place}" for place in places}},
    )
