"""Running a router on a socket until a signal says stop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from api.serve import Server, Tls

from .door import door
from .router import Router


class RouterServer(Server):
    """Starts what runs beside the requests when it listens. On a signal it takes nothing new, lets running requests
    end for the configured grace, and cuts what is left with an error that clients can see."""

    def __init__(self, router: Router, *, on_ready: Callable[[], None] = lambda: None, tls: Tls | None = None) -> None:
        super().__init__(router.app, grace=router.config.grace_seconds, abort=self._cut, on_ready=on_ready, tls=tls)
        self._router = router
        self._loop: asyncio.AbstractEventLoop | None = None
        self.config.http = door(router.config.max_header_bytes, router.config.head_seconds)
        self.config.date_header = False  # the backend's passes through
        self.config.proxy_headers = False  # what a client says of itself is for the backend to believe

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._router.start()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._router.fleet.draining = True
        try:
            await super().shutdown(sockets)
        finally:
            await self._router.stop()

    def _cut(self) -> None:
        """Called on a thread of its own, when the grace has ended."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._router.cut)
