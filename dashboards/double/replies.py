"""How the double answers: JSON bodies and refusals shaped as Grafana shapes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

Json = dict[str, Any]
Reply = Json | list[Json] | JSONResponse


def refuse(code: int, message: str, /, **more: object) -> JSONResponse:
    return JSONResponse({"message": message, **more}, code)


def found(thing: Json | None, otherwise: str, /, **more: object) -> Json | JSONResponse:
    return refuse(404, otherwise, **more) if thing is None else thing


def mount(prefix: str, routes: Iterable[tuple[str, str, Callable[..., Any]]]) -> APIRouter:
    """A router of (method, path, endpoint) rows, tried in their order."""
    router = APIRouter(prefix=prefix)
    for method, path, endpoint in routes:
        router.add_api_route(path, endpoint, methods=[method], response_model=None)
    return router
