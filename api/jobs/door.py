"""Who asks, and what they may do: a bearer key, the page's cookie, or nobody in particular while the door is open."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from api.errors import ForbiddenError, UnauthorizedError
from energyopt.core.jobs import Scope

from .services import JobServices

COOKIE = "energyopt_key"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request. ``tenant`` None sees every study, another only those of its own."""

    name: str
    scopes: frozenset[Scope]
    tenant: str | None = None


ANYBODY = Caller("anybody", frozenset(Scope))
"""Who asks while the door is open."""


async def services_of(request: Request) -> JobServices:
    """The bundle that the application was made from."""
    services: JobServices = request.app.state.services
    return services


ServicesDep = Annotated[JobServices, Depends(services_of)]


async def identify(request: Request, services: JobServices) -> Caller:
    """Raises UnauthorizedError; ForbiddenError for a foreign site that speaks through somebody's browser."""
    refuse_foreign_site(request)
    text, by_cookie = _key_text(request)
    if text is None:
        if services.open_door and not await run_in_threadpool(services.keys.any_active):
            _refuse_foreign_name(request, services)
            return ANYBODY
        raise UnauthorizedError("An API key is required: send it as 'Authorization: Bearer KEY'.")
    key = await run_in_threadpool(services.keys.find, text)
    if key is None:
        raise UnauthorizedError("The session has ended: sign in again." if by_cookie else "The API key is not correct.")
    scopes = frozenset(scope for own in key.scopes for scope in own.included)
    return Caller(f"key:{key.id}", scopes, key.tenant)


def needs(scope: Scope) -> Callable[..., Coroutine[Any, Any, Caller]]:
    """A dependency that lets callers with ``scope`` pass. What others try to change goes to the audit log."""

    async def check(request: Request, services: ServicesDep) -> Caller:
        caller = await identify(request, services)
        request.state.caller = caller
        if scope not in caller.scopes:
            if request.method not in SAFE_METHODS:
                target = f"{request.method} {request.url.path}"
                await run_in_threadpool(services.keys.note, caller.name, "refused", target, f"needs {scope.value}")
            raise ForbiddenError(f"This key may not do that: it takes the scope {scope.value!r}.")
        return caller

    return check


Reader = Annotated[Caller, Depends(needs(Scope.READ))]
Tuner = Annotated[Caller, Depends(needs(Scope.TUNE))]
Controller = Annotated[Caller, Depends(needs(Scope.CONTROL))]
Admin = Annotated[Caller, Depends(needs(Scope.ADMIN))]


def _key_text(request: Request) -> tuple[str | None, bool]:
    header = request.headers.get("authorization")
    if header is not None:
        scheme, _, given = header.partition(" ")
        return (given.strip() if scheme.lower() == "bearer" else ""), False
    return request.cookies.get(COOKIE), True


def refuse_foreign_site(request: Request) -> None:
    """A browser says where a request that changes something comes from; other programs say nothing."""
    origin = request.headers.get("origin")
    if request.method in SAFE_METHODS or origin is None:
        return
    if urlsplit(origin).netloc != request.headers.get("host"):
        raise ForbiddenError("Requests from other sites are not answered.")


def _refuse_foreign_name(request: Request, services: JobServices) -> None:
    host = urlsplit(f"//{request.headers.get('host', '')}").hostname
    if services.hosts is not None and host not in services.hosts:
        raise ForbiddenError(f"Without keys only {', '.join(sorted(services.hosts))} are answered, not {host!r}.")
