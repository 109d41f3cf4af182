"""``GET /v1/studies/{id}/events``: what happens in a study, as it happens (Server-Sent Events)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from energyopt.core.errors import UsageError

from ..access import study_of
from ..door import Reader, ServicesDep
from ..hub import EventHub

router = APIRouter()


@router.get("/v1/studies/{study_id}/events", response_class=StreamingResponse)
async def events(
    study_id: str,
    request: Request,
    services: ServicesDep,
    caller: Reader,
    last_event_id: Annotated[str | None, Header(max_length=30)] = None,
    after: Annotated[int, Query(ge=0, lt=2**62, description="As Last-Event-ID, which goes before it.")] = 0,
) -> Response:
    """Every event after the last one seen, each once, in order; then those that come, until the study has ended.

    ``standing`` events have no id: they say where the study stands now. ``end`` is the last.
    """
    study = await run_in_threadpool(study_of, services, caller, study_id)
    hub: EventHub = request.app.state.hub
    hub.admit(request.app.state.devices.watchers)
    return stream(hub.watch(study.id, _last(last_event_id, after)))


def stream(frames: AsyncGenerator[bytes]) -> StreamingResponse:
    """Frames of Server-Sent Events as they come, past the buffers of proxies."""
    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    return StreamingResponse(_closing(frames), media_type="text/event-stream", headers=headers)


async def _closing(frames: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Close the stream of the hub at once when the client goes away."""
    try:
        async for frame in frames:
            yield frame
    finally:
        await frames.aclose()


def _last(header: str | None, after: int) -> int:
    if header is None or header == "":
        return after
    if not (header.isascii() and header.isdigit() and int(header) < 2**62):
        raise UsageError(f"Last-Event-ID = {header!r} is not the id of an event.")
    return int(header)
