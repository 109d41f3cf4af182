"""The optional bearer key in front of ``/v1``, and whose it is."""

from __future__ import annotations

import hmac

from starlette.requests import Request

from .deps import ServicesDep
from .errors import ForbiddenError, UnauthorizedError


async def require_key(request: Request, services: ServicesDep) -> None:
    """Let the request pass when no key is configured or it carries a right one. Raises UnauthorizedError.

    The comparison takes the same time however many characters agree, and every key is compared.
    """
    if not services.keys:
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not given.strip():
        raise UnauthorizedError("An API key is required: send it as 'Authorization: Bearer KEY'.")
    # Header text is Latin-1 by definition; the key is compared as the bytes a client would send for it.
    sent = given.strip().encode("latin-1")
    matches = [tenant for key, tenant in services.keys.items() if hmac.compare_digest(sent, key.encode("utf-8"))]
    if not matches:
        raise UnauthorizedError("The API key is not correct.")
    request.state.tenant = matches[0]


async def require_operator(request: Request, services: ServicesDep) -> None:
    """Like ``require_key``, but a tenant's key is not enough: what is asked for changes things for everybody.

    Raises UnauthorizedError, ForbiddenError.
    """
    await require_key(request, services)
    if tenant_of(request) is not None:
        raise ForbiddenError("This key is a tenant's: resetting the cache of all takes the operator's key.")


def tenant_of(request: Request) -> str | None:
    """The tenant whose key the request carried; None where no key names one. Clients cannot choose it otherwise."""
    tenant: str | None = getattr(request.state, "tenant", None)
    return tenant
