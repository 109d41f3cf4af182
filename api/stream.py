"""Answering a call: whole, or as server-sent events.

A response begins only when the first output is there, so that every refusal of the engine still has its status code.
What fails later becomes an ``error`` event, after which the stream ends without ``[DONE]``.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from energyopt.core.errors import EnergyoptError
from engine.output import Output

from .auth import tenant_of
from .call import Call
from .errors import problem_of
from .fanout import Event, fan_out, until_disconnect
from .services import Services
from .shapes import DONE, Shape
from .usage import Tally, energy_of

_log = logging.getLogger(__name__)


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
    return SseResponse(_frames(services, call, shape, first, events), events)


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


class SseResponse(Response):
    """Sends ``frames`` as they come; when the client goes away, ``source`` is closed at once, which aborts its jobs."""

    def __init__(self, frames: AsyncGenerator[bytes], source: AsyncGenerator[Event]) -> None:
        super().__init__(
            media_type="text/event-stream", headers={"cache-control": "no-cache", "x-accel-buffering": "no"}
        )
        del self.headers["content-length"]
        self._frames = frames
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_disconnect(receive, self._send_all(send))
        except ClientDisconnect:
            return
        finally:
            await self._frames.aclose()
            await self._source.aclose()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for frame in self._frames:
            await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
