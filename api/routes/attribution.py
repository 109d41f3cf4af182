"""``GET /v1/energy/attribution``: who used how much energy since the server started."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from energyopt.core.errors import NotFoundError

from ..auth import tenant_of
from ..deps import ServicesDep

router = APIRouter()


@router.get("/v1/energy/attribution")
async def attribution(request: Request, services: ServicesDep) -> Response:
    """Joules by tenant, phase, session and cache tier, with the rules and their error.

    A tenant's key shows that tenant alone. Raises NotFoundError where nothing is measured.
    """
    if services.energy is None:
        raise NotFoundError("Energy is not measured here, so there is none to attribute.")
    report = await asyncio.to_thread(services.energy.attribution, tenant_of(request))
    return Response(report.model_dump_json(), media_type="application/json")
