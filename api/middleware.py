"""What happens around every route, as plain ASGI: an id, a limit on the body, and a last net.

These are not built on the framework's request objects, because those would buffer streams.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable
from typing import Protocol

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import BodyTooLargeError, problem_of

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


class BodyLimitMiddleware:
    """No body above ``limit`` bytes is read, whether it declares its length or not."""

    def __init__(self, app: ASGIApp, *, limit: int, answer: Answer = problem_of) -> None:
        self._app, self._answer = app, answer
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = _header(scope, b"content-length")
        if declared is not None and declared.isdigit() and int(declared[:20]) > self._limit:
            await self._answer(self._error()).response()(scope, receive, send)
            return
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._limit:
                raise self._error()
            return message

        await self._app(scope, counted, send)

    def _error(self) -> BodyTooLargeError:
        return BodyTooLargeError(f"The request body is larger than the {self._limit} bytes allowed.")
