"""Before every route of the job service: how often one may ask, and what browsers are told about our answers."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .problems import TooManyRequestsError, problem_of
from .rate import RateLimit

_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
}


class GuardMiddleware:
    """Counts requests by address; 429 with Retry-After above the rate."""

    def __init__(self, app: ASGIApp, *, limit: RateLimit) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        wait = self._limit.take(_caller(scope))
        if wait > 0:
            error = TooManyRequestsError("This is more often than one may ask here.", retry_after=wait)
            await problem_of(error).response()(scope, receive, with_headers)
            return
        await self._app(scope, receive, with_headers)


def _caller(scope: Scope) -> str:
    """The address: a guesser of keys, who has a new one every time, must not have a new bucket for each."""
    return str(scope["client"][0]) if scope.get("client") else ""
