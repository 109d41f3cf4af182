"""One engine's answer for a client, piece by piece: also one that does not end, such as its cache's events."""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.fanout import until_disconnect


class Through(Response):
    """Owns ``answer``. When the client goes away the engine is told; where the engine breaks off, so does the answer:
    a length that is not reached, or chunks without a last one, which no client takes for a whole one."""

    def __init__(self, answer: aiohttp.ClientResponse, headers: Mapping[str, str]) -> None:
        super().__init__(status_code=answer.status, headers=dict(headers))
        length = answer.headers.get("content-length")
        del self.headers["content-length"]  # of the empty body that was given here
        if length is not None:
            self.headers["content-length"] = length
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_disconnect(receive, self._send_all(send))
        except ClientDisconnect:
            return
        finally:
            self._answer.close()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for data in self._answer.content.iter_any():
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
