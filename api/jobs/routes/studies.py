"""``/v1/studies``: submit, list, look at, change and delete."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from energyopt.core.errors import ConfigError, UsageError
from energyopt.core.jobs import StudyFilter
from energyopt.core.study import StudySpec, StudyState
from energyopt.store.jobs import Repeat

from ..access import note, study_of
from ..bodies import StudyPatch, checked, read_object, take_labels
from ..documents import answer, etag, make_cursor, read_cursor, revision_of
from ..door import Caller, Reader, ServicesDep, Tuner
from ..openapi import CREATE, PATCH
from ..problems import PreconditionMissingError
from ..services import JobServices, Planned
from ..views import StudyPage, StudyView, study_view

router = APIRouter()
RETRY_AFTER = "2"
"""Seconds after which a client may look again at what it submitted."""


@router.post("/v1/studies", status_code=202, response_model=StudyView, openapi_extra=CREATE)
async def create_study(
    request: Request,
    services: ServicesDep,
    caller: Tuner,
    dry_run: Annotated[bool, Query(description="Only plan: nothing is stored.")] = False,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=200)] = None,
) -> Response:
    """Submit a study: a model and its SLOs, or a whole specification. It waits for a worker.

    With an ``Idempotency-Key`` a repeated request is answered with the study that the first one made.
    """
    body = await read_object(request)
    labels = take_labels(body)
    if dry_run:
        planned = await run_in_threadpool(_plan, services, body)
        return answer(planned.document())
    repeat = None
    if idempotency_key is not None:
        digest = hashlib.sha256(await request.body()).hexdigest()
        repeat = Repeat(caller.name, idempotency_key, digest)
    return await run_in_threadpool(_submit, services, caller, body, labels, repeat)


@router.get("/v1/studies", response_model=StudyPage)
def list_studies(
    services: ServicesDep,
    caller: Reader,
    state: Annotated[list[StudyState] | None, Query(description="Repeat for several.")] = None,
    label: Annotated[list[str] | None, Query(description="NAME=VALUE; repeat to ask for all of them.")] = None,
    model: Annotated[str | None, Query(max_length=500)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    cursor: Annotated[str | None, Query(max_length=200)] = None,
) -> Response:
    """Studies, newest first."""
    chosen = StudyFilter(states=tuple(state or ()), labels=_labels(label or []), tenant=caller.tenant, model=model)
    before = None if cursor is None else int(read_cursor("studies", cursor)[0] or 0)
    lines = services.pages.studies(chosen, limit=limit + 1, before=before)
    more = make_cursor("studies", [lines[limit - 1].sequence]) if len(lines) > limit else None
    return answer(StudyPage(items=tuple(lines[:limit]), next=more))


@router.get("/v1/studies/{study_id}", response_model=StudyView)
def get_study(study_id: str, services: ServicesDep, caller: Reader) -> Response:
    """One study."""
    return _shown(services, caller, study_id)


@router.patch("/v1/studies/{study_id}", response_model=StudyView, openapi_extra=PATCH)
async def patch_study(
    study_id: str,
    request: Request,
    services: ServicesDep,
    caller: Tuner,
    if_match: Annotated[str | None, Header(max_length=100)] = None,
) -> Response:
    """Change budget or labels; ``If-Match`` names the ETag that was seen. A running study takes the budget up."""
    patch = checked(await read_object(request), StudyPatch)
    if if_match is None:
        raise PreconditionMissingError("A change needs If-Match with the study's ETag, so that none is lost.")
    return await run_in_threadpool(_change, services, caller, study_id, patch, revision_of(if_match))


@router.delete("/v1/studies/{study_id}", status_code=204)
def delete_study(study_id: str, services: ServicesDep, caller: Tuner) -> Response:
    """Delete a study that has ended, with its trials and events. Files of it stay in its folder."""
    services.jobs.remove(study_of(services, caller, study_id).id)
    note(services, caller, "delete", f"study:{study_id}")
    return Response(status_code=204)


def _plan(services: JobServices, body: Mapping[str, Any]) -> Planned:
    if "baseline" in body or "space" in body:
        return services.planner.plan_spec(checked(body, StudySpec))
    form: type[BaseModel] = services.planner.form
    return services.planner.plan(checked(body, form))


def _submit(
    services: JobServices, caller: Caller, body: Mapping[str, Any], labels: Mapping[str, str], repeat: Repeat | None
) -> Response:
    made = None if repeat is None else services.jobs.repeated(repeat)
    if made is None:
        planned = _plan(services, body)
        made, repeated = services.jobs.submit(
            planned.spec, planned.machine, labels=labels, tenant=caller.tenant, by=caller.name, repeat=repeat
        )
        if not repeated:
            note(services, caller, "submit", f"study:{made}", planned.spec.name)
    headers = {"location": f"/v1/studies/{made}", "retry-after": RETRY_AFTER}
    return _shown(services, caller, made, status=202, headers=headers)


def _change(services: JobServices, caller: Caller, study_id: str, patch: StudyPatch, revision: int) -> Response:
    study = study_of(services, caller, study_id)
    if patch.budget is not None and study.state.terminal:
        raise ConfigError(f"Study {study_id} is {study.state}: its budget means nothing any more.")
    services.jobs.change(study.id, revision, budget=patch.budget, labels=patch.labels)
    note(services, caller, "change", f"study:{study.id}", patch.model_dump_json(exclude_none=True))
    return _shown(services, caller, study.id)


def _shown(
    services: JobServices,
    caller: Caller,
    study_id: str,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    study = study_of(services, caller, study_id)
    job = services.jobs.job(study.id)
    view = study_view(study, job, services.pages.counts(study.id))
    return answer(view, status, {"etag": etag(job.revision), **(headers or {})})


def _labels(pairs: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"label = {pair[:60]!r} is not allowed: expected NAME=VALUE.")
        found[name] = value
    return found
