"""Processes of the router's bench: an engine that answers at once or in a paced stream, a plain aiohttp proxy, and a
relay that copies bytes between two sockets and knows nothing of what they mean."""

from __future__ import annotations

import asyncio
import re
import socket
import sys

import aiohttp
import uvloop
from aiohttp import web

CHUNK = (
    b'data: {"id":"chatcmpl-0123456789","object":"chat.completion.chunk","created":1700000000,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}\n\n'
)
DONE = b"data: [DONE]\n\n"
PLAIN = b'{"id":"chatcmpl-1","object":"chat.completion","choices":[{"message":{"content":"%b"}}]}' % (b"x" * 900)
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n"
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Engine(asyncio.Protocol):
    """``x-chunks: N`` streams N chunks, one every ``x-every`` seconds; without it a whole answer comes at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, found, body = self.data.partition(b"\r\n\r\n")
        if not found:
            return
        length = _LENGTH.search(head)
        if len(body) < (int(length[1]) if length else 0):
            return
        self.data = b""
        chunks = re.search(rb"x-chunks: *(\d+)", head)
        if chunks:
            every = re.search(rb"x-every: *([\d.]+)", head)
            self.transport.write(_HEAD % b"text/event-stream" + b"transfer-encoding: chunked\r\n\r\n")
            self._chunk(int(chunks[1]), float(every[1]) if every else 0.0)
        else:
            self.transport.write(_HEAD % b"application/json" + b"content-length: %d\r\n\r\n" % len(PLAIN) + PLAIN)

    def _chunk(self, left: int, every: float) -> None:
        if self.transport.is_closing():
            return
        if left:
            self.transport.write(framed(CHUNK))
            asyncio.get_running_loop().call_later(every, self._chunk, left - 1, every)
        else:
            self.transport.write(framed(DONE) + b"0\r\n\r\n")


async def engine() -> None:
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - the bench reads it
    await server.serve_forever()


class Relay(asyncio.Protocol):
    """One end of a pair: what it receives, the other end sends."""

    def __init__(self, port: int | None = None, far: Relay | None = None) -> None:
        self._port, self.far, self._early = port, far, b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        if self._port is not None:
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(loop.create_connection(lambda: Relay(None, self), "127.0.0.1", self._port))
        elif self.far is not None and self.transport is not None:
            self.far.far = self
            self.transport.write(self.far._early)

    def data_received(self, data: bytes) -> None:
        if self.far is None or self.far.transport is None:
            self._early += data
        else:
            self.far.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self.far is not None and self.far.transport is not None:
            self.far.transport.close()


async def relay(port: int) -> None:
    """What any process in between costs on this machine: two sockets, no parsing, no choice."""
    server = await asyncio.get_running_loop().create_server(lambda: Relay(port), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - the bench reads it
    await server.serve_forever()


async def plain_proxy(target: str) -> None:
    """What the router's speed is compared with: aiohttp on both sides, and no routing at all."""
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)

    async def forward(request: web.Request) -> web.StreamResponse:
        headers = {
            name: value for name, value in request.headers.items() if name.lower() not in ("host", "content-length")
        }
        async with session.post(target + request.path_qs, data=await request.read(), headers=headers) as reply:
            answer = web.StreamResponse(status=reply.status, headers={"content-type": reply.headers["content-type"]})
            answer.content_length = reply.content_length
            await answer.prepare(request)
            async for piece in reply.content.iter_any():
                await answer.write(piece)
            await answer.write_eof()
            return answer

    app = web.Application(client_max_size=2**25)
    app.router.add_route("*", "/{path:.*}", forward)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listener).start()
    print(listener.getsockname()[1], flush=True)  # noqa: T201 - the bench reads it
    await asyncio.Event().wait()


if __name__ == "__main__":
    match sys.argv[1]:
        case "engine":
            uvloop.run(engine())
        case "relay":
            uvloop.run(relay(int(sys.argv[2])))
        case _:
            uvloop.run(plain_proxy(sys.argv[2]))
