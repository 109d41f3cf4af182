"""The devices of the host to everybody who watches, with one look at the sensors for all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable

from pydantic_core import to_json
from starlette.concurrency import run_in_threadpool

EVERY = 2.0
"""Seconds between looks. What a device draws is a mean since the look before."""
PATIENCE = 0.5
"""Seconds in which a stream notices that the service ends."""

Look = Callable[[], list[dict[str, object]]]


class DeviceFeed:
    """``watch`` gives frames; nobody looks while nobody watches. All of it lives on one event loop."""

    def __init__(self, look: Look, closed: Callable[[], bool], *, every: float = EVERY) -> None:
        self._look, self._closed, self._every = look, closed, every
        self._looking = asyncio.Lock()
        self._frame, self._at = b"", -every
        self.watchers = 0

    async def watch(self) -> AsyncGenerator[bytes]:
        """A frame for each look, the newest at once; ends with the service."""
        self.watchers += 1
        try:
            yield b"retry: 2000\n\n"
            while not self._closed():
                yield await self._newest()
                until = time.monotonic() + self._every
                while time.monotonic() < until and not self._closed():  # noqa: ASYNC110  closed from another thread
                    await asyncio.sleep(min(PATIENCE, self._every))
        finally:
            self.watchers -= 1

    async def _newest(self) -> bytes:
        async with self._looking:  # who comes while another looks gets what that one sees
            if time.monotonic() - self._at >= self._every:
                devices = await run_in_threadpool(self._look)
                self._frame = b"event: devices\ndata: %s\n\n" % to_json({"items": devices}, inf_nan_mode="null")
                self._at = time.monotonic()
            return self._frame
