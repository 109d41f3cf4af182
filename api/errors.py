"""Errors as OpenAI's clients expect them: ``{"error": {"message", "type", "param", "code"}}`` with the right status.

::

    RequestError (core)
    ├── UnknownFieldError         400   a body field nobody knows
    ├── UnsupportedFieldError     400   a known field, with a value this server does not implement
    ├── BodyTooLargeError         413
    └── BodyTooSlowError          408
    UsageError (core)
    ├── UnauthorizedError         401
    └── ForbiddenError            403   a tenant's key, where the operator's is needed
    NotFoundError (core)
    └── UnknownModelError         404

Anything that is not an EnergyoptError is answered with a fixed sentence: no detail of a fault reaches a client.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from energyopt.core.errors import (
    DeadlineError,
    EnergyoptError,
    EngineDeadError,
    NotFoundError,
    OverloadedError,
    PromptTooLongError,
    RequestError,
    UsageError,
)

DEAD_RETRY_AFTER = 10
"""Seconds a client is asked to wait for an engine that has ended: about what a restart of the process takes."""

CLIENT_CLOSED_REQUEST = 499
"""Nobody reads this status: the client has gone. It exists for logs, with the number nginx uses."""


class UnknownFieldError(RequestError):
    """A field of the body that no OpenAI-compatible server is known to take: a misspelt option must not do nothing."""


class UnsupportedFieldError(RequestError):
    """A known field with a value that this server does not implement."""


class BodyTooLargeError(RequestError):
    """A request body above the limit."""

    http_status = 413


class BodyTooSlowError(RequestError):
    """A request body that did not come in time."""

    http_status = 408


class UnauthorizedError(UsageError):
    """No API key, or a wrong one."""

    http_status = 401


class ForbiddenError(UsageError):
    """A right key that may not do this."""

    http_status = 403


class UnknownModelError(NotFoundError):
    """The body or path names a model that is not served here."""


_CODES: dict[type[Exception], str] = {
    UnknownFieldError: "unknown_parameter",
    UnsupportedFieldError: "unsupported_parameter",
    PromptTooLongError: "context_length_exceeded",
    BodyTooLargeError: "request_too_large",
    BodyTooSlowError: "request_too_slow",
    UnauthorizedError: "invalid_api_key",
    UnknownModelError: "model_not_found",
    DeadlineError: "deadline_exceeded",
    OverloadedError: "overloaded",
    EngineDeadError: "engine_unavailable",
    RequestError: "invalid_value",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One error, ready to be sent as a response or as an event of a stream."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def type(self) -> str:
        """OpenAI's error type for the status."""
        if self.status == HTTPStatus.SERVICE_UNAVAILABLE:
            return "service_unavailable_error"
        return "server_error" if self.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"

    @property
    def body(self) -> bytes:
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode()

    def response(self) -> Response:
        return Response(self.body, self.status, dict(self.headers), media_type="application/json")


def problem_of(error: Exception) -> Problem:
    """How an exception is shown to a client."""
    if isinstance(error, ClientDisconnect):
        return Problem(CLIENT_CLOSED_REQUEST, "The client closed the connection.")
    if not isinstance(error, EnergyoptError):
        return Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "The server failed to handle this request.")
    param = error.param if isinstance(error, RequestError) else None
    if isinstance(error, UnknownModelError):
        param = "model"
    code = next((_CODES[cls] for cls in type(error).__mro__ if cls in _CODES), None)
    return Problem(error.http_status, error.message, param, code, _headers(error))


def _headers(error: EnergyoptError) -> dict[str, str]:
    if isinstance(error, OverloadedError):
        wait = error.retry_after if math.isfinite(error.retry_after) else DEAD_RETRY_AFTER
        return {"retry-after": str(max(1, math.ceil(wait)))}
    if isinstance(error, EngineDeadError):
        return {"retry-after": str(DEAD_RETRY_AFTER)}
    if isinstance(error, BodyTooSlowError):
        return {"connection": "close"}  # what still comes of the body is not waited for either
    if isinstance(error, UnauthorizedError):
        return {"www-authenticate": "Bearer"}
    return {}


def ended_by_client(body: bytes) -> bool:
    """Whether an engine's error says that the time limit which the client gave has ended: no fault of the engine's,
    and no other engine may try again. A proxy that waits in vain for an engine answers 504 as well, in other words."""
    try:
        reply = from_json(body)
    except ValueError:
        return False
    error = reply.get("error") if isinstance(reply, dict) else None
    return isinstance(error, dict) and error.get("code") == _CODES[DeadlineError]


def install_handlers(app: FastAPI) -> None:
    """Answer every error of ``app`` in the one shape."""
    app.add_exception_handler(EnergyoptError, _answer)
    app.add_exception_handler(ClientDisconnect, _answer)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(RequestValidationError, _answer_invalid)


async def _answer(_: Request, error: Exception) -> Response:
    return problem_of(error).response()


async def _answer_http(request: Request, error: Exception) -> Response:
    """Unknown routes and methods, which the framework reports with its own exception."""
    assert isinstance(error, HTTPException)
    sentence = {
        HTTPStatus.NOT_FOUND: f"There is no route {request.method} {request.url.path}.",
        HTTPStatus.METHOD_NOT_ALLOWED: f"{request.url.path} does not take {request.method}.",
    }.get(HTTPStatus(error.status_code), str(error.detail))
    code = "unknown_url" if error.status_code == HTTPStatus.NOT_FOUND else None
    return Problem(error.status_code, sentence, code=code, headers=error.headers or {}).response()


async def _answer_invalid(_: Request, error: Exception) -> Response:
    """Path and query parameters that do not parse: the framework would say 422 in a shape of its own."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = str(first["loc"][-1])
    message = f"{name} is not allowed: {first['msg'][:1].lower()}{first['msg'][1:]}."
    return Problem(HTTPStatus.BAD_REQUEST, message, name, "invalid_value").response()
