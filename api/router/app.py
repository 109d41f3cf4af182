"""The router as an ASGI application: its own few pages, and everything else to a backend."""

from __future__ import annotations

import hmac
from http import HTTPStatus

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from api.errors import BodyTooLargeError, Problem, UnauthorizedError, problem_of
from api.middleware import in_time
from api.services import MetricsPage
from energyopt.core.errors import EnergyoptError, OverloadedError
from energyopt.core.units import Seconds

from .fleet import UNHEALTHY_RETRY_AFTER, Fleet
from .forward import Forwarder
from .headers import value_of
from .pages import backends_page, merged_models, switch

FORWARDED = ("/v1/", "/tokenize", "/detokenize", "/pooling", "/classify", "/score", "/rerank", "/v2/")
"""Beginnings of paths that backends answer; what an operator asks of an engine is asked there."""
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD")


class RouterApp:
    """Answers from ``fleet``. With ``api_key`` clients must send it, except to /health and /metrics."""

    def __init__(
        self,
        fleet: Fleet,
        forwarder: Forwarder,
        metrics: MetricsPage,
        *,
        max_body_bytes: int,
        body_seconds: Seconds,
        api_key: str | None,
    ) -> None:
        self._fleet, self._forwarder, self._metrics = fleet, forwarder, metrics
        self._limit, self._seconds = max_body_bytes, body_seconds
        self._key = None if api_key is None else api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            path: str = scope["path"]
            if path.startswith(FORWARDED) and path != "/v1/models" and scope["method"] in METHODS and _plain(path):
                self._admit(scope)
                body = await self._body(scope, receive)
                await self._forwarder.carry(scope, send, body)
            else:
                response = await self._own(scope, receive)
                await response(scope, receive, send)
        except ClientDisconnect:
            return
        except EnergyoptError as error:  # raised before an answer began
            await problem_of(error).response()(scope, receive, send)

    async def _own(self, scope: Scope, receive: Receive) -> Response:
        match scope["method"], scope["path"]:
            case "GET" | "HEAD", "/health":
                return self._health()
            case "GET", "/metrics":
                page, kind = self._metrics.render((value_of(scope["headers"], b"accept") or b"").decode("latin-1"))
                return Response(page, headers={"content-type": kind})
            case "GET", "/v1/models":
                self._admit(scope)
                return JSONResponse(await merged_models(self._fleet))
            case "GET", "/router/backends":
                self._admit(scope)
                return JSONResponse(backends_page(self._fleet))
            case "POST", "/router/drain" | "/router/resume":
                self._admit(scope)
                body = await self._body(scope, receive)
                return JSONResponse(switch(self._fleet, body, drain=scope["path"].endswith("drain")))
        method, path = scope["method"], scope["path"]
        known = "it forwards /v1/... and answers /health, /metrics and /router/backends"
        message = f"The router has no route {method} {path[:200]}: {known}."
        return Problem(HTTPStatus.NOT_FOUND, message, code="unknown_url").response()

    def _health(self) -> Response:
        """200 while some backend takes requests, and was asked whether it does."""
        if self._fleet.draining:
            raise OverloadedError("This router drains.", retry_after=UNHEALTHY_RETRY_AFTER)
        fit = self._fleet.fit(None)
        if not any(backend.probed.is_set() for backend in fit):
            why = "No backend has said yet that it is healthy." if fit else "No backend is healthy."
            raise OverloadedError(why, retry_after=UNHEALTHY_RETRY_AFTER)
        return Response()

    def _admit(self, scope: Scope) -> None:
        """Raises UnauthorizedError unless the key is right, or none is asked for."""
        if self._key is None:
            return
        scheme, _, given = (value_of(scope["headers"], b"authorization") or b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._key):
            raise UnauthorizedError("This router asks for its API key: send it as 'Authorization: Bearer KEY'.")

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body. Raises BodyTooLargeError, BodyTooSlowError, ClientDisconnect."""
        declared = value_of(scope["headers"], b"content-length")
        if declared is not None and declared.isdigit() and int(declared[:20]) > self._limit:
            raise BodyTooLargeError(f"The request body is larger than the {self._limit} bytes allowed.")
        pieces: list[bytes] = []
        size, more, receive = 0, True, in_time(receive, self._seconds)
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            pieces.append(message["body"])
            size += len(message["body"])
            more = message["more_body"]
            if size > self._limit:
                raise BodyTooLargeError(f"The request body is larger than the {self._limit} bytes allowed.")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _plain(path: str) -> bool:
    """Whether it means what it begins with: a server behind a backend's proxy may take ``/v1/../admin`` for /admin."""
    return ".." not in path.replace("\\", "/").split("/")
