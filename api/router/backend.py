"""One backend: its connections, its health, what it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from .health import Health
from .pool import Pool
from .settings import BackendConfig, RouterConfig


@dataclass(slots=True)
class Backend:
    """``models`` are its entries of ``/v1/models`` by id; None while nothing is known, which refuses no model.

    ``probed`` is set once a probe has asked it, whatever that found.
    """

    config: BackendConfig
    pool: Pool
    health: Health
    models: Mapping[str, Mapping[str, object]] | None = None
    running: int = 0
    trouble: str | None = field(default=None)
    probed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def authorization(self) -> bytes | None:
        """What is sent instead of the client's own."""
        key = self.config.api_key
        return None if key is None else b"Bearer " + key.encode()

    @property
    def full(self) -> bool:
        return self.running >= self.config.max_concurrency

    def serves(self, model: str | None) -> bool:
        return model is None or self.models is None or model in self.models


def health_of(config: RouterConfig) -> Health:
    return Health(after=config.eject_after, seconds=config.eject_seconds)
