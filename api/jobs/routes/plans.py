"""``/v1/plans`` and ``/v1/workloads``: deployments by simulation, and the traces that describe a load."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from ..access import note
from ..bodies import checked, read_object
from ..documents import answer
from ..door import Caller, Reader, ServicesDep, Tuner
from ..openapi import PLAN
from ..services import JobServices

router = APIRouter()


@router.post("/v1/plans", openapi_extra=PLAN)
async def make_plan(request: Request, services: ServicesDep, caller: Tuner) -> Response:
    """The most frugal deployment on GPUs that need not exist. Everything in the answer is simulated, and says so."""
    form = checked(await read_object(request), services.plans.form)
    return answer(await run_in_threadpool(services.plans.make, form))


@router.get("/v1/workloads")
def list_workloads(services: ServicesDep, caller: Reader) -> Response:
    """Uploaded traces."""
    return answer({"items": services.workloads.names()})


@router.put("/v1/workloads/{name}", status_code=201)
async def put_workload(
    name: str,
    request: Request,
    services: ServicesDep,
    caller: Tuner,
    format: Annotated[str, Query(max_length=20, description="auto, mooncake, azure, messages or sharegpt.")] = "auto",
) -> Response:
    """Keep the body as a trace under ``name``, if it is one; the answer describes it."""
    return await run_in_threadpool(_put, services, caller, name, await request.body(), format)


@router.get("/v1/workloads/{name}")
def describe_workload(name: str, services: ServicesDep, caller: Reader) -> Response:
    """Lengths, reuse, ideal hit rate and arrivals of a trace."""
    return answer(services.workloads.describe(name))


@router.delete("/v1/workloads/{name}", status_code=204)
def delete_workload(name: str, services: ServicesDep, caller: Tuner) -> Response:
    """Forget a trace."""
    services.workloads.remove(name)
    note(services, caller, "delete", f"workload:{name}")
    return Response(status_code=204)


def _put(services: JobServices, caller: Caller, name: str, content: bytes, form: str) -> Response:
    found = services.workloads.put(name, content, form)
    note(services, caller, "upload", f"workload:{name}", f"{len(content)} bytes")
    return answer(found, 201)
