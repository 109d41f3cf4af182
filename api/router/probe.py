"""Asks backends whether they live and what they serve."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from pydantic_core import from_json

from energyopt.core.units import Seconds

from .backend import Backend
from .errors import BackendError

_log = logging.getLogger(__name__)

PATIENCE = Seconds(5.0)
MAX_ANSWER = 4 * 2**20
_ABSENT = (404, 405, 501)
_NOT_FOR_US = (401, 403)


async def fetch(backend: Backend, path: bytes) -> tuple[int, bytes]:
    """Status and body of a small answer. Raises BackendError, also when it is not small or takes too long."""
    key = backend.authorization
    headers = [(b"accept", b"application/json")] + ([(b"authorization", key)] if key is not None else [])
    try:
        async with asyncio.timeout(PATIENCE):
            connection = await backend.pool.send(b"GET", path, headers, b"")
            try:
                body = b""
                while data := await connection.read():
                    body += data
                    if len(body) > MAX_ANSWER:
                        raise BackendError(f"{path.decode()} of {backend.name} is longer than {MAX_ANSWER} bytes.")
                return connection.status, body
            finally:
                backend.pool.release(connection)
    except TimeoutError as error:
        raise BackendError(f"{backend.name} did not answer {path.decode()} within {PATIENCE:g} s.") from error


class Prober:
    """Probes every backend in turn, for ever. ``on_up`` and ``on_down`` hear of changes, with the backend's name."""

    def __init__(
        self,
        backends: tuple[Backend, ...],
        every: Seconds,
        *,
        on_up: Callable[[str], None],
        on_down: Callable[[str], None],
    ) -> None:
        self._backends, self._every = backends, every
        self._on_up, self._on_down = on_up, on_down

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.once()
            await asyncio.sleep(self._every)

    async def once(self) -> None:
        """One probe of every backend, all at the same time."""
        await asyncio.gather(*(self._probe(backend) for backend in self._backends))

    async def _probe(self, backend: Backend) -> None:
        try:
            up = await self._look(backend)
        except BackendError as error:
            up, backend.trouble = False, str(error)
        if backend.health.probed(up):
            _log.warning("%s is %s", backend.name, "up again" if up else f"down: {backend.trouble}")
            (self._on_up if up else self._on_down)(backend.name)
        backend.probed.set()

    async def _look(self, backend: Backend) -> bool:
        """Whether it lives; notes what it serves."""
        status, _ = await fetch(backend, b"/health")
        known, body = await fetch(backend, b"/v1/models")
        if known == 200:
            backend.models = models_of(body)
        elif known in _NOT_FOR_US and backend.models is None and backend.trouble is None:
            _log.warning(
                "%s asks for a key at /v1/models: give it one as api_key, or its models stay unknown", backend.name
            )
        if status in _ABSENT:  # an endpoint without /health
            return known < 500
        if status != 200:
            backend.trouble = f"/health answers {status}"
        return status == 200


def models_of(body: bytes) -> Mapping[str, Mapping[str, object]] | None:
    """The entries of a model list by id, whatever else they say; None if it is no such list."""
    try:
        document = from_json(body)
    except ValueError:
        return None
    data = document.get("data") if isinstance(document, dict) else None
    if not isinstance(data, list):
        return None
    return {entry["id"]: entry for entry in data if isinstance(entry, dict) and isinstance(entry.get("id"), str)}
