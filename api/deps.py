"""Named dependencies, so that a handler's signature lists what it needs."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends
from starlette.requests import Request

from .services import Services


async def services_of(request: Request) -> Services:
    """The bundle that ``create_app`` was given."""
    services: Services = request.app.state.services
    return services


ServicesDep = Annotated[Services, Depends(services_of)]
