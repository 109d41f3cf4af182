"""``/v1/leases``: trials for workers that reach the service by HTTP alone. ``/v1/workers``: who they are."""

from __future__ import annotations

import asyncio
from datetime import datetime

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from energyopt.core.leases import HEARD, LeaseGoneError, WorkerRecord
from energyopt.core.results import Result
from energyopt.core.study import TrialOutcome
from energyopt.core.units import Seconds
from tuner.source import LeasedTrial

from ..bodies import BeatBody, CompleteBody, FailBody, FaultBody, LeaseBody, checked, read_object
from ..documents import answer
from ..door import Caller, Reader, ServicesDep, Tuner
from ..openapi import BEAT, COMPLETE, FAIL, FAULT, LEASE
from ..services import JobServices

router = APIRouter()
LOOK = 0.5
"""Seconds between two looks for a worker that waits."""


class CompletedView(Result):
    """What the SLOs of the study make of a result."""

    outcome: TrialOutcome


class WorkerList(Result):
    """Workers heard of in the last minute. ``now`` is the clock that ``seen`` is of."""

    now: datetime
    items: tuple[WorkerRecord, ...]


@router.post("/v1/leases", response_model=LeasedTrial, responses={204: {"description": "None."}}, openapi_extra=LEASE)
async def acquire(request: Request, services: ServicesDep, caller: Tuner) -> Response:
    """A queued trial, with everything that it takes to measure it; 204 after ``wait`` seconds without one.

    Who asks again under the same ``id`` gets the trial that it has. 409 while another worker has one of its devices.
    """
    body = checked(await read_object(request), LeaseBody)
    source, hub = services.sources(caller.tenant), request.app.state.hub
    until = asyncio.get_running_loop().time() + body.wait
    while True:
        found = await run_in_threadpool(source.acquire, body.worker)
        if found is not None:
            return answer(found)
        left = until - asyncio.get_running_loop().time()
        if left <= 0 or hub.closed or await request.is_disconnected():
            return Response(status_code=204)
        await asyncio.sleep(min(LOOK, left))


@router.put("/v1/leases/{lease_id}", status_code=204, openapi_extra=BEAT)
async def beat(lease_id: str, request: Request, services: ServicesDep, caller: Tuner) -> Response:
    """A sign of life, which prolongs the lease. 410 once it has ended: nothing of that attempt counts any more."""
    body = checked(await read_object(request), BeatBody)

    def say() -> None:
        _own(services, caller, lease_id)
        services.sources(caller.tenant).beat(lease_id, body.stage, body.fraction)

    await run_in_threadpool(say)
    return Response(status_code=204)


@router.post("/v1/leases/{lease_id}:complete", response_model=CompletedView, openapi_extra=COMPLETE)
async def complete(lease_id: str, request: Request, services: ServicesDep, caller: Tuner) -> Response:
    """The trial was measured. A second time changes nothing; 410 where the lease has ended without a result."""
    body = checked(await read_object(request), CompleteBody)

    def say() -> TrialOutcome:
        _own(services, caller, lease_id)
        return services.sources(caller.tenant).complete(lease_id, body.result)

    return answer(CompletedView(outcome=await run_in_threadpool(say)))


@router.post("/v1/leases/{lease_id}:fail", status_code=204, openapi_extra=FAIL)
async def fail(lease_id: str, request: Request, services: ServicesDep, caller: Tuner) -> Response:
    """The configuration failed; that is a result, and the trial is not tried again."""
    body = checked(await read_object(request), FailBody)

    def say() -> None:
        _own(services, caller, lease_id)
        services.sources(caller.tenant).fail(lease_id, body.failure())

    await run_in_threadpool(say)
    return Response(status_code=204)


@router.post("/v1/leases/{lease_id}:fault", status_code=204, openapi_extra=FAULT)
async def fault(lease_id: str, request: Request, services: ServicesDep, caller: Tuner) -> Response:
    """Something failed that is not the configuration's: the trial is queued again, three times at most."""
    body = checked(await read_object(request), FaultBody)

    def say() -> None:
        _own(services, caller, lease_id)
        services.sources(caller.tenant).fault(lease_id, body.reason)

    await run_in_threadpool(say)
    return Response(status_code=204)


@router.delete("/v1/leases/{lease_id}", status_code=204)
def release(lease_id: str, services: ServicesDep, caller: Tuner) -> Response:
    """Give a trial back unmeasured."""
    _own(services, caller, lease_id)
    services.sources(caller.tenant).release(lease_id)
    return Response(status_code=204)


@router.get("/v1/workers", response_model=WorkerList)
def workers(services: ServicesDep, caller: Reader) -> Response:
    """Workers, their hardware and devices, and what they measure."""
    found = services.leases.workers(Seconds(HEARD), caller.tenant)
    return answer(WorkerList(now=services.clock.utc(), items=tuple(found)))


def _own(services: JobServices, caller: Caller, lease_id: str) -> None:
    """Raises LeaseGoneError, also for a lease on another tenant's study: its existence is not told."""
    study, _ = services.leases.trial_of(lease_id)
    if caller.tenant is not None and services.jobs.job(study).tenant != caller.tenant:
        raise LeaseGoneError(f"There is no lease {lease_id[:60]!r}.")
