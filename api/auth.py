"""The optional bearer key in front of ``/v1``."""

from __future__ import annotations

import hmac

from starlette.requests import Request

from .deps import ServicesDep
from .errors import UnauthorizedError


async def require_key(request: Request, services: ServicesDep) -> None:
    """Let the request pass when no key is configured or it carries the right one. Raises UnauthorizedError.

    The comparison takes the same time however many characters agree.
    """
    if services.api_key is None:
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not given.strip():
        raise UnauthorizedError("An API key is required: send it as 'Authorization: Bearer KEY'.")
    # Header text is Latin-1 by definition; the key is compared as the bytes a client would send for it.
    if not hmac.compare_digest(given.strip().encode("latin-1"), services.api_key.encode("utf-8")):
        raise UnauthorizedError("The API key is not correct.")
