"""One engine's answer for a client, piece by piece: also one that does not end, such as its cache's events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack

import aiohttp

from api.streamed import StreamedResponse


def through(answer: aiohttp.ClientResponse, headers: Mapping[str, str]) -> StreamedResponse:
    """Takes ``answer`` over. When the client goes away the engine is told; where the engine breaks off, so does the
    answer: a length that is not reached, or chunks without a last one, which no client takes for a whole one."""
    length = answer.headers.get("content-length")
    owned = AsyncExitStack()
    owned.callback(answer.close)
    sent = dict(headers) if length is None else {**headers, "content-length": length}
    return StreamedResponse(_pieces(answer), owned, answer.status, sent)


async def _pieces(answer: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    async for data in answer.content.iter_any():
        yield data
