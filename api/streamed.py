"""An answer that is sent piece by piece, and what it holds let go as soon as nobody waits for it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .fanout import until_disconnect


class StreamedResponse(Response):
    """Sends the pieces of ``body`` as they come, one message each.

    When it ends, or the client goes away, ``body`` is closed at once and then ``owned``; also if no piece was ever
    asked for, which is why a ``finally`` within ``body`` would not do. An error of ``body`` breaks the answer off.
    Without a ``content-length`` in ``headers`` it has none.
    """

    def __init__(
        self,
        body: AsyncGenerator[bytes],
        owned: AsyncExitStack,
        status_code: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str | None = None,
    ) -> None:
        super().__init__(None, status_code, headers, media_type)
        if "content-length" not in {name.lower() for name in headers or {}}:
            del self.headers["content-length"]  # of the empty body that was given here
        self._body = body
        self._owned = owned

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with self._owned, aclosing(self._body):
                await until_disconnect(receive, self._send_all(send))
        except ClientDisconnect:
            return

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for piece in self._body:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
