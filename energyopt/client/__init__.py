"""A client for the job service: ``Client`` for plain code, ``AsyncClient`` for asyncio, over the same calls."""

from . import calls
from .calls import ApiError
from .clients import AsyncClient, Client

__all__ = ["ApiError", "AsyncClient", "Client", "calls"]
