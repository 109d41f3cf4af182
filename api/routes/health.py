"""``GET /health`` and ``GET /version``."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from energyopt.core.errors import EngineDeadError

from ..deps import ServicesDep

router = APIRouter()


@router.get("/health")
async def health(services: ServicesDep) -> Response:
    """200 while the engine serves, 503 once it has ended."""
    if not services.engine.alive:
        raise EngineDeadError("The engine has ended; this server answers nothing more.")
    return Response()


@router.get("/version")
async def version(services: ServicesDep) -> dict[str, str]:
    """The version of this server."""
    return {"version": services.version}
