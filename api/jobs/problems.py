"""Errors as RFC 9457 has them: ``application/problem+json`` with ``type``, ``title``, ``status`` and ``detail``.

``errors`` lists every complaint about the request, each with a JSON pointer into the body or the name of a parameter.
Anything that is not an EnergyoptError is answered with a fixed sentence.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from api.errors import (
    CLIENT_CLOSED_REQUEST,
    BodyTooLargeError,
    BodyTooSlowError,
    ForbiddenError,
    UnauthorizedError,
)
from energyopt.core.errors import (
    ControlError,
    EnergyoptError,
    NoFeasibleError,
    NotFoundError,
    OverloadedError,
    StoreError,
    UsageError,
)

MEDIA_TYPE = "application/problem+json"
_SHOWN = 80


class ConflictError(UsageError):
    """What was asked for does not fit the state of the thing it was asked of."""

    http_status = 409


class PreconditionMissingError(UsageError):
    """A change without If-Match."""

    http_status = 428


class TooManyRequestsError(OverloadedError):
    """A client that asks more often than it may."""

    http_status = 429


class InvalidBodyError(UsageError):
    """A body with complaints, each with its pointer."""

    http_status = 422

    def __init__(self, complaints: Sequence[Mapping[str, str]]) -> None:
        first = complaints[0]
        where = first.get("pointer", "")
        super().__init__(f"{where}: {first['detail']}" if where not in ("", "#") else first["detail"])
        self.complaints = complaints

    @classmethod
    def of(cls, error: ValidationError) -> InvalidBodyError:
        """Every complaint of pydantic, where it points."""
        found = error.errors(include_url=False, include_context=False)
        return cls([{"pointer": pointer(one["loc"]), "detail": _words(one)} for one in found])


_SLUGS: dict[type[Exception], str] = {
    InvalidBodyError: "invalid-body",
    ConflictError: "conflict",
    NoFeasibleError: "no-feasible-trial",
    NotFoundError: "not-found",
    UnauthorizedError: "unauthorized",
    ForbiddenError: "forbidden",
    BodyTooLargeError: "body-too-large",
    BodyTooSlowError: "body-too-slow",
    TooManyRequestsError: "too-many-requests",
    OverloadedError: "overloaded",
    StoreError: "database-refused",
    ControlError: "power-refused",
    UsageError: "not-allowed",
}


@dataclass(frozen=True, slots=True)
class ProblemDocument:
    """One problem, ready to be sent. ``extra`` members come after the standard ones."""

    status: int
    detail: str
    slug: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)

    @property
    def document(self) -> dict[str, object]:
        kind = "about:blank" if self.slug is None else f"urn:energyopt:problem:{self.slug}"
        plain = "client closed request" if self.status == CLIENT_CLOSED_REQUEST else HTTPStatus(self.status).phrase
        title = self.slug.replace("-", " ") if self.slug else plain
        return {"type": kind, "title": title, "status": self.status, "detail": self.detail, **self.extra}

    def response(self) -> Response:
        headers = {"cache-control": "no-store", **self.headers}
        return Response(json.dumps(self.document).encode(), self.status, headers, media_type=MEDIA_TYPE)


def problem_of(error: Exception) -> ProblemDocument:
    """How an exception is shown to a client."""
    if isinstance(error, ClientDisconnect):
        return ProblemDocument(CLIENT_CLOSED_REQUEST, "The client closed the connection.")
    if not isinstance(error, EnergyoptError):
        return ProblemDocument(HTTPStatus.INTERNAL_SERVER_ERROR, "The service failed to handle this request.")
    slug = next((_SLUGS[cls] for cls in type(error).__mro__ if cls in _SLUGS), None)
    extra: dict[str, object] = {}
    if isinstance(error, InvalidBodyError):
        extra["errors"] = list(error.complaints)
    extra |= getattr(error, "extra", {})
    # A database that refuses is a state of the service, not a fault in it: another try may find it well.
    status = HTTPStatus.SERVICE_UNAVAILABLE if isinstance(error, StoreError) else error.http_status
    status = HTTPStatus.CONFLICT if isinstance(error, ControlError) else status
    return ProblemDocument(status, error.message, slug, _headers(error), extra)


def _headers(error: EnergyoptError) -> dict[str, str]:
    if isinstance(error, OverloadedError) and math.isfinite(error.retry_after):
        return {"retry-after": str(max(1, math.ceil(error.retry_after)))}
    if isinstance(error, StoreError):
        return {"retry-after": "2"}
    if isinstance(error, UnauthorizedError):
        return {"www-authenticate": "Bearer"}
    return {}


def install_problems(app: FastAPI) -> None:
    """Answer every error of ``app`` as a problem."""
    app.add_exception_handler(EnergyoptError, _answer)
    app.add_exception_handler(ClientDisconnect, _answer)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(RequestValidationError, _answer_invalid)


def pointer(path: Sequence[int | str]) -> str:
    """A JSON pointer (RFC 6901) as a URI fragment."""
    return "#" + "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


async def _answer(_: Request, error: Exception) -> Response:
    return problem_of(error).response()


async def _answer_http(request: Request, error: Exception) -> Response:
    """Unknown routes and methods, which the framework reports with its own exception."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    sentence = {
        HTTPStatus.NOT_FOUND: f"There is no route {request.method} {path}.",
        HTTPStatus.METHOD_NOT_ALLOWED: f"{path} does not take {request.method}.",
    }.get(HTTPStatus(error.status_code), str(error.detail))
    return ProblemDocument(error.status_code, sentence, headers=error.headers or {}).response()


async def _answer_invalid(_: Request, error: Exception) -> Response:
    """Path, query and header parameters, and bodies that the framework checks."""
    assert isinstance(error, RequestValidationError)
    complaints = []
    for one in error.errors():
        place, *path = one["loc"]
        where = {"pointer": pointer(path)} if place == "body" else {"parameter": str(path[-1]) if path else str(place)}
        complaints.append({**where, "detail": _words(one)})
    first = complaints[0]
    detail = f"{first.get('parameter') or first.get('pointer')}: {first['detail']}"
    return ProblemDocument(422, detail, "invalid-body", extra={"errors": complaints}).response()


def _words(complaint: Mapping[str, object]) -> str:
    message = str(complaint["msg"]).removeprefix("Value error, ")
    if complaint["type"] == "missing":
        return "this field is missing"
    if complaint["type"] == "extra_forbidden":
        return "this field is not known"
    shown = repr(complaint.get("input"))
    shown = shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 1]}…"
    return f"{shown} is not allowed: {message[:1].lower()}{message[1:]}"
