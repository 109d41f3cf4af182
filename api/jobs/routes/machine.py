"""``/v1/devices``, ``/v1/energy`` and ``/v1/caps``: the host of the service, and what was measured anywhere."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from energyopt.core.errors import ConfigError
from energyopt.store.energy_history import MAX_POINTS, MAX_RESOLUTION, MINUTE

from ..access import note
from ..bodies import CapBody, checked, read_object
from ..documents import answer, answer_json
from ..door import Caller, Controller, Reader, ServicesDep
from ..openapi import CAP
from ..services import JobServices
from .events import stream

router = APIRouter()
Moment = Annotated[datetime, Query(description="With its time zone, such as 2026-01-31T12:00:00Z.")]


@router.get("/v1/devices")
def devices(services: ServicesDep, caller: Reader) -> Response:
    """Devices of this host: power, limits, clocks, throttling, and who holds a limit. Unknown values are null."""
    return answer({"items": services.devices.look()})


@router.get("/v1/devices/events", response_class=StreamingResponse)
async def device_events(request: Request, caller: Reader) -> Response:
    """``devices`` events with what ``/v1/devices`` says, one every two seconds (Server-Sent Events)."""
    feed = request.app.state.devices
    request.app.state.hub.admit(feed.watchers)
    return stream(feed.watch())


@router.get("/v1/energy")
def energy(
    services: ServicesDep,
    caller: Reader,
    start: Moment,
    end: Moment,
    resolution: Annotated[int, Query(ge=1, le=MAX_RESOLUTION, description="Seconds of one point.")] = MINUTE,
    device: Annotated[str | None, Query(max_length=200)] = None,
    host: Annotated[str | None, Query(max_length=255)] = None,
    label: Annotated[str | None, Query(max_length=200, description="NAME=VALUE: measured windows of such studies.")] = (
        None
    ),
    limit: Annotated[int, Query(ge=1, le=MAX_POINTS)] = MAX_POINTS,
) -> Response:
    """Energy over time of every sensor that was kept; each point with source, error and how much of it is known.

    With ``label`` it is that of the measured windows of studies that have it, counted where their trials ended; hosts
    are not told apart then, so ``host`` goes without it.
    """
    if start.tzinfo is None or end.tzinfo is None:
        raise ConfigError("start and end must name their time zone, such as 2026-01-31T12:00:00Z.")
    if label is not None:
        return _of_label(services, caller, label, start, end, resolution, device, host)
    points = services.energy.energy_json(start, end, resolution=resolution, device=device, host=host, limit=limit)
    return answer_json(b'{"resolution":%d,"items":%b}' % (resolution, points))


@router.get("/v1/energy/sensors")
def sensors(services: ServicesDep, caller: Reader) -> Response:
    """Sensors that energy was ever kept of."""
    return answer({"items": services.energy.sensors()})


@router.get("/v1/caps")
def caps(services: ServicesDep, caller: Reader) -> Response:
    """Leases on limits: who holds which device, and for how long still."""
    return answer({"items": [one for one in services.devices.look() if one.get("lease") is not None]})


@router.post("/v1/caps", status_code=201, openapi_extra=CAP)
async def set_caps(request: Request, services: ServicesDep, caller: Controller) -> Response:
    """Take devices for a time under a limit; what was found comes back at its end, whatever becomes of the service."""
    body = checked(await read_object(request), CapBody)
    return await run_in_threadpool(_acquire, services, caller, body)


@router.delete("/v1/caps")
def clear_caps(
    services: ServicesDep,
    caller: Controller,
    device: Annotated[list[str] | None, Query(description="Repeat for several; default: all of the host.")] = None,
) -> Response:
    """End leases now and put back what was found."""
    said = services.devices.release(device or [])
    note(services, caller, "release caps", ",".join(device or ["all"]))
    return answer({"said": list(said), "items": services.devices.look()})


def _acquire(services: JobServices, caller: Caller, body: CapBody) -> Response:
    if body.cap is None and body.sm_clock is None:
        raise ConfigError("A lease needs cap (watts), sm_clock (hertz) or both.")
    note(services, caller, "cap", ",".join(body.devices or ["all"]), body.model_dump_json(exclude_none=True))
    lease = services.devices.acquire(body.devices, body.cap, body.sm_clock, body.ttl)
    return answer({"lease": lease, "items": services.devices.look()}, 201)


def _of_label(
    services: JobServices,
    caller: Caller,
    label: str,
    start: datetime,
    end: datetime,
    resolution: int,
    device: str | None,
    host: str | None,
) -> Response:
    name, equals, value = label.partition("=")
    if not equals or not name:
        raise ConfigError(f"label = {label[:60]!r} is not allowed: expected NAME=VALUE.")
    if host is not None:
        raise ConfigError("host goes without label: a study's trials may run on several.")
    found = services.label_energy.energy(
        (name, value), start, end, resolution=resolution, device=device, tenant=caller.tenant
    )
    return answer({"resolution": resolution, "items": found})
