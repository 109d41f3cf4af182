"""Answering a call: whole, or as server-sent events.

A response begins only when the first output is there, so that every refusal of the engine still has its status code.
What fails later becomes an ``error`` event, after which the stream ends without ``[DONE]``.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing

from starlette.requests import Request
from starlette.responses import Response

from energyopt.core.errors import EnergyoptError
from engine.output import Output

from .auth import tenant_of
from .call import Call
from .errors import problem_of
from .fanout import Event, fan_out, until_disconnect
from .services import Services
from .shapes import DONE, Shape
from .streamed import StreamedResponse
from .usage import Tally, energy_of

_log = logging.getLogger(__name__)
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


async def answer(request: Request, services: Services, call: Call, shape: Shape) -> Response:
    """Run ``call`` and reply in ``shape``.

    Raises what the engine raises before the reply begins, or ClientDisconnect.
    """
    if services.energy is not None:
        for job in call.jobs:
            services.energy.note(job.request_id, tenant=tenant_of(request), session=call.session)
    events = fan_out(services.engine, call)
    if not call.stream:
        return await until_disconnect(request.receive, _whole(services, call, shape, events))
    try:
        first = await until_disconnect(request.receive, _next(events))
    except BaseException:
        await events.aclose()
        raise
    owned = AsyncExitStack()
    owned.push_async_callback(events.aclose)  # which aborts the jobs
    return StreamedResponse(
        _frames(services, call, shape, first, events), owned, headers=_HEADERS, media_type="text/event-stream"
    )


async def _next(events: AsyncGenerator[Event]) -> Event:
    return await anext(events)


async def _whole(services: Services, call: Call, shape: Shape, events: AsyncGenerator[Event]) -> Response:
    tally, outputs = Tally(call), [list[Output]() for _ in call.jobs]
    async with aclosing(events):
        async for index, output in events:
            tally.add(index, output)
            outputs[index].append(output)
    energy = await energy_of(services.energy, call)
    headers = {} if energy is None else energy.headers
    return Response(shape.reply(outputs, tally.usage(energy)), headers=headers, media_type="application/json")


async def _frames(
    services: Services, call: Call, shape: Shape, first: Event, events: AsyncGenerator[Event]
) -> AsyncGenerator[bytes]:
    """The body of a stream, from the role to ``[DONE]`` or to the error that ended it."""
    tally = Tally(call)

    def frame(event: Event) -> bytes:
        tally.add(*event)
        return shape.chunk(*event, tally.usage() if call.continuous_usage else None)

    try:
        yield shape.opening() + frame(first)
        async for event in events:
            data = frame(event)
            if data:
                yield data
        if call.include_usage:
            yield shape.closing(tally.usage(await energy_of(services.energy, call)))
        yield DONE
    except Exception as error:  # noqa: BLE001  the border to the client: told there, and logged if the fault is ours
        if not isinstance(error, EnergyoptError):
            _log.exception("unexpected error in the stream of %s", call.id)
        yield b"event: error\ndata: " + problem_of(error).body + b"\n\n"
