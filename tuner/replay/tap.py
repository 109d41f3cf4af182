"""Measures the traffic of somebody else's client: stands before a server, passes bytes on, reads answers as ours does.

So two load generators can be compared on one run: what differs is arithmetic, not luck.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from energyopt.core.clock import Clock
from energyopt.core.errors import EngineError
from energyopt.core.units import Seconds

from ..counting import Window
from .ask import Ask, Prompt, Reply
from .lag import ClientLoad
from .measure import Recording
from .reading import StreamReading
from .sse import SseParser

_MAX_BODY = 64 * 2**20
_OWN = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "te", "trailer", "upgrade"}
"""Headers of one connection, which a middleman does not pass on."""


class _BrokenError(Exception):
    """The server ended an answer in its middle."""


class Tap:
    """Passes everything on to ``url``; ``pages`` (path: text) are answered here. ``serving`` runs it once.

    ``replies`` and ``asks`` are those of streamed answers, in order of their ends; one that broke is a failed reply.
    Times are the tap's: what lies between the client and it is not seen.
    """

    def __init__(self, url: str, clock: Clock, pages: Mapping[str, Callable[[], str]] | None = None) -> None:
        self._url, self._clock, self._pages = url, clock, dict(pages or {})
        self.replies: list[Reply] = []
        self.asks: dict[str, Ask] = {}
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """The address of the tap, on this host alone, while the block lasts."""
        app = web.Application(client_max_size=_MAX_BODY)
        app.router.add_route("*", "/{path:.*}", self._pass)
        runner = web.AppRunner(app, access_log=None)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as self._session:
            await runner.setup()
            try:
                site = web.TCPSite(runner, "127.0.0.1", 0)
                await site.start()
                host, port = runner.addresses[0][:2]
                yield f"http://{host}:{port}"
            finally:
                await runner.cleanup()

    def recording(self) -> Recording:
        """What passed, from the first request to the end of the last. Raises EngineError if nothing did."""
        if not self.replies:
            raise EngineError("Not one streamed answer passed the tap.")
        first = min(reply.record.arrival for reply in self.replies)
        last = max(reply.record.end for reply in self.replies)
        nobody = ClientLoad(Seconds(0.0), Seconds(0.0), 0.0)
        window = Window(first, Seconds(last + 1e-6))
        errors = Counter(type(reply.error).__name__ for reply in self.replies if reply.error is not None)
        return Recording(window, tuple(self.replies), dict(self.asks), nobody, errors, (), 0.0)

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        page = self._pages.get(request.path)
        if page is not None:
            return web.Response(text=page())
        if self._session is None:
            raise ValueError("the tap is not open: use it in an async with block.")
        body = await request.read()
        reading = self._reading(request, body)
        sent = {name: value for name, value in request.headers.items() if name.lower() not in _OWN}
        try:
            async with self._session.request(
                request.method, self._url + request.path_qs, data=body, headers=sent, allow_redirects=False
            ) as answer:
                told = {name: value for name, value in answer.headers.items() if name.lower() not in _OWN}
                out = web.StreamResponse(status=answer.status, headers=told)
                await self._stream(request, answer, out, reading if answer.status == 200 else None)
                return out
        except (aiohttp.ClientError, OSError) as error:
            gone = EngineError(f"The server gave no answer: {error}")
            self._keep(reading, lambda known: known.fail(gone, self._clock.now()))
            return web.Response(status=502, text=f"The server behind the tap gave no answer: {error}")

    async def _stream(
        self,
        request: web.Request,
        answer: aiohttp.ClientResponse,
        out: web.StreamResponse,
        reading: StreamReading | None,
    ) -> None:
        """Every piece goes on at once; it is read after that, so that reading costs the client nothing.

        A stream that breaks is a failed answer here and a broken stream for the client.
        """
        parser, clock = SseParser(), self._clock
        try:
            await out.prepare(request)
            async for piece in _pieces(answer):
                at = clock.now()
                await out.write(piece)
                for data in parser.feed(piece) if reading is not None else ():
                    if reading is not None:
                        reading.event(data, at)
            await out.write_eof()
        except _BrokenError as error:
            broken = EngineError(str(error))
            self._keep(reading, lambda known: known.fail(broken, clock.now()))
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:  # the client has left
            self._keep(reading, lambda known: known.leave(clock.now()))
        else:
            self._keep(reading, lambda known: known.finish(clock.now()))

    def _keep(self, reading: StreamReading | None, end: Callable[[StreamReading], Reply]) -> None:
        """How a streamed answer ended; of others nothing is kept."""
        if reading is not None:
            self.replies.append(end(reading))

    def _reading(self, request: web.Request, body: bytes) -> StreamReading | None:
        """For a request whose answer is streamed; None for any other."""
        try:
            said = json.loads(body) if request.method == "POST" else None
        except ValueError:
            said = None  # the server will say so
        if not isinstance(said, dict) or said.get("stream") is not True:
            return None
        wanted = said.get("max_completion_tokens", said.get("max_tokens"))
        session = request.headers.get("x-correlation-id", "")
        name = f"{request.headers.get('x-request-id', 'request')}/{secrets.token_hex(4)}"
        output = wanted if isinstance(wanted, int) else 0
        now = self._clock.now()
        self.asks[name] = ask = Ask(name, session, Prompt(), output, now)
        return StreamReading(ask, now)


async def _pieces(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The body as it comes. What breaks it is told apart from a client that has left: both are ConnectionErrors."""
    try:
        async for piece in answer.content.iter_any():
            yield piece
    except (aiohttp.ClientError, OSError) as error:
        raise _BrokenError(f"The stream broke: {error}") from error
