"""``GET /health`` and ``GET /version``: for probes, which carry no key."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from energyopt.core.jobs import StudyFilter

from ..documents import answer
from ..door import ServicesDep

router = APIRouter()


@router.get("/health")
def health(services: ServicesDep) -> Response:
    """200 while the database answers."""
    services.pages.studies(StudyFilter(), limit=1)
    return answer({"status": "ok"})


@router.get("/version")
async def version(services: ServicesDep) -> Response:
    """The version of this service."""
    return answer({"version": services.version})
