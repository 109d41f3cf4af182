"""What happens around every route, as plain ASGI: an id, limits on the body, and a last net.

These are not built on the framework's request objects, because those would buffer streams.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Callable
from typing import Protocol

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from energyopt.core.units import Seconds

from .errors import BodyTooLargeError, BodyTooSlowError, problem_of

BODY_SECONDS = Seconds(120.0)
"""How long a body may take, from when somebody wants it: the largest one still comes over a slow line."""
_log = logging.getLogger(__name__)
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,200}")


class Shown(Protocol):
    """An error that is ready to be sent."""

    def response(self) -> Response: ...


Answer = Callable[[Exception], Shown]
"""How an error is shown; applications differ in the shape."""


def _header(scope: Scope, name: bytes) -> bytes | None:
    return next((value for key, value in scope["headers"] if key == name), None)


class RequestIdMiddleware:
    """Every response carries ``x-request-id``: the client's own if it is printable and short, else a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = _header(scope, b"x-request-id")
        own = given if given is not None and _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex.encode()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", own)]
            await send(message)

        await self._app(scope, receive, send_with_id)


class LastNetMiddleware:
    """A fault of ours becomes a 500 in the one error shape, with its traceback in the log and nowhere else."""

    def __init__(self, app: ASGIApp, *, answer: Answer = problem_of) -> None:
        self._app, self._answer = app, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:  # the border to the client: logged whole, and raised on if nothing can be said
            if started or scope["type"] != "http":
                raise
            _log.exception("unexpected error in %s %s", scope["method"], scope["path"])
            await self._answer(error).response()(scope, receive, send)


def in_time(receive: Receive, seconds: Seconds) -> Receive:
    """``receive`` of one request, which raises BodyTooSlowError if its body is not here so long after the first call.

    What comes behind the body is the client's going away: for that there is no limit.
    """
    until: float | None = None
    whole = False

    async def timed() -> Message:
        nonlocal until, whole
        if whole:
            return await receive()
        until = asyncio.get_running_loop().time() + seconds if until is None else until
        try:
            async with asyncio.timeout_at(until):
                message = await receive()
        except TimeoutError as error:
            raise BodyTooSlowError(f"The request body was not complete within {seconds:g} s.") from error
        whole = not message.get("more_body", False)
        return message

    return timed


class BodyLimitMiddleware:
    """No body above ``limit`` bytes is read, whether it declares its length or not, and for ``seconds`` at most."""

    def __init__(
        self, app: ASGIApp, *, limit: int, seconds: Seconds = BODY_SECONDS, answer: Answer = problem_of
    ) -> None:
        self._app, self._answer = app, answer
        self._limit, self._seconds = limit, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = _header(scope, b"content-length")
        if declared is not None and declared.isdigit() and int(declared[:20]) > self._limit:
            await self._answer(self._error()).response()(scope, receive, send)
            return
        size, timed = 0, in_time(receive, self._seconds)

        async def counted() -> Message:
            nonlocal size
            message = await timed()
            size += len(message.get("body", b""))
            if size > self._limit:
                raise self._error()
            return message

        await self._app(scope, counted, send)

    def _error(self) -> BodyTooLargeError:
        return BodyTooLargeError(f"The request body is larger than the {self._limit} bytes allowed.")
