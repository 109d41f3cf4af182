"""``GET /metrics``."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..deps import ServicesDep

router = APIRouter()


@router.get("/metrics")
def metrics(request: Request, services: ServicesDep) -> Response:
    """The Prometheus page. A plain function: the framework runs it on a thread, so a scrape stops no stream."""
    body, content_type = services.metrics.render(request.headers.get("accept", ""))
    return Response(body, headers={"content-type": content_type})
