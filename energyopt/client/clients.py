"""The two clients: they send calls and read streams, and know nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Self, TypeVar

import httpx

from energyopt.core.errors import ConfigError

from . import calls
from .calls import ApiError, Call
from .models import Happening, Study
from .stream import EventReader

T = TypeVar("T")
TIMEOUT = httpx.Timeout(60.0, connect=10.0)
_RECONNECT = 1.0


class Client:
    """``Client(url, key).send(calls.get_study(id))``. A context manager. Raises ApiError, ConfigError for no URL."""

    def __init__(self, url: str, key: str | None = None, *, transport: httpx.BaseTransport | None = None) -> None:
        self._http = httpx.Client(base_url=checked(url), headers=_headers(key), timeout=TIMEOUT, transport=transport)

    def send(self, call: Call[T]) -> T:
        try:
            return call.read(self._http.send(call.request(self._http)))
        except httpx.HTTPError as error:
            raise unreachable(self._http.base_url, error) from error

    def events(self, study: str, *, after: int | None = None) -> Iterator[Happening]:
        """What happens in a study until it has ended; a connection that breaks is made again, and nothing repeats."""
        reader, tries = EventReader(after), 0
        while True:
            try:
                with self._http.stream("GET", f"{calls.STUDIES}/{study}/events", headers=_after(reader)) as reply:
                    if reply.is_error:
                        reply.read()
                        raise calls.problem_of(reply)
                    for line in reply.iter_lines():
                        found = reader.feed(line)
                        if found is not None:
                            tries = 0
                            yield found
                            if found.event == "end":
                                return
            except (httpx.TransportError, ValueError) as error:
                if tries >= 30:
                    raise unreachable(self._http.base_url, error) from error
            tries += 1
            time.sleep(_RECONNECT)

    def wait(self, study: str) -> Study:
        """Until the study has ended."""
        for _ in self.events(study):
            pass
        return self.send(calls.get_study(study))

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class AsyncClient:
    """``Client`` for asyncio."""

    def __init__(self, url: str, key: str | None = None, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._http = httpx.AsyncClient(
            base_url=checked(url), headers=_headers(key), timeout=TIMEOUT, transport=transport
        )

    async def send(self, call: Call[T]) -> T:
        try:
            return call.read(await self._http.send(call.request(self._http)))
        except httpx.HTTPError as error:
            raise unreachable(self._http.base_url, error) from error

    async def events(self, study: str, *, after: int | None = None) -> AsyncIterator[Happening]:
        """As ``Client.events``."""
        reader, tries = EventReader(after), 0
        while True:
            try:
                async with self._http.stream("GET", f"{calls.STUDIES}/{study}/events", headers=_after(reader)) as reply:
                    if reply.is_error:
                        await reply.aread()
                        raise calls.problem_of(reply)
                    async for line in reply.aiter_lines():
                        found = reader.feed(line)
                        if found is not None:
                            tries = 0
                            yield found
                            if found.event == "end":
                                return
            except (httpx.TransportError, ValueError) as error:
                if tries >= 30:
                    raise unreachable(self._http.base_url, error) from error
            tries += 1
            await asyncio.sleep(_RECONNECT)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()


def checked(url: str) -> httpx.URL:
    """``HOST:PORT`` or a URL. Raises ConfigError."""
    try:
        parsed = httpx.URL(url if "://" in url else f"http://{url}")
    except httpx.InvalidURL as error:
        raise ConfigError(f"{url[:80]!r} is no address of a service: {error}.") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"{url[:80]!r} is no address of a service: expected http://HOST:PORT.")
    return parsed


def unreachable(url: httpx.URL, error: Exception) -> ApiError:
    """For a service that does not answer."""
    return ApiError(f"{url} does not answer: {error or type(error).__name__}.")


def _headers(key: str | None) -> dict[str, str]:
    return {} if key is None else {"authorization": f"Bearer {key}"}


def _after(reader: EventReader) -> dict[str, str]:
    return {"accept": "text/event-stream"} | ({} if reader.last is None else {"last-event-id": str(reader.last)})
