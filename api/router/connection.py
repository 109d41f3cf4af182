"""One HTTP/1.1 connection to a backend: a request at a time, its answer in pieces as they come.

It knows bytes and framing, not what they mean. The body passes as it is, in whatever encoding; reading stops while
nobody takes what has come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

from .errors import BackendError, StaleConnection
from .headers import Header

HIGH_WATER = 256 * 2**10
"""Bytes that may wait for a slow client before reading stops."""
MAX_HEADER_BYTES = 256 * 2**10
_WITHOUT_BODY = (204, 304)


class Connection(asyncio.Protocol):
    """``exchange`` sends a request and returns when the answer's head is here; ``read`` gives the body's pieces.

    After the last piece the connection is ``reusable``, or not. ``abort`` ends it at once, which tells the backend that
    nobody waits. ``on_lost`` is called when it has ended. ``heard`` is the loop's time of the last byte.
    """

    def __init__(self, on_lost: Callable[[Connection], None]) -> None:
        self.status = 0
        self.headers: list[Header] = []
        self.heard = 0.0
        self.reusable = True
        self.uses = 0
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._reset()

    def _reset(self) -> None:
        self._pieces: list[bytes] = []
        self._waiting = self._header_bytes = 0
        self._headed = self._complete = self._busy = self._paused = self._framed = False
        self._head_only = False
        self._failure: BackendError | None = None
        self._sink: Callable[[bytes], None] | None = None

    @property
    def complete(self) -> bool:
        """Whether the whole answer has come."""
        return self._complete

    @property
    def owed(self) -> bool:
        """Whether the backend has something to say next; a client that reads slowly is not its silence."""
        return not self._complete and not self._paused

    async def exchange(self, head: bytes, body: bytes, *, head_only: bool = False) -> None:
        """Send a request; returns when status and headers are here. ``head_only``: the answer has no body (HEAD).

        Raises StaleConnection if a kept connection turns out closed, BackendError.
        """
        transport = self._transport
        if transport is None or transport.is_closing() or not self.reusable:
            raise StaleConnection("The connection was closed.")
        self._reset()
        self.status, self.headers, self._busy, self._head_only = 0, [], True, head_only
        self.uses += 1
        self.heard = self._loop.time()
        transport.write(head + body if len(body) < HIGH_WATER else head)
        if len(body) >= HIGH_WATER:
            transport.write(body)
        while not self._headed and self._failure is None:
            await self._wait()
        if not self._headed and self._failure is not None:
            raise self._failure

    async def read(self) -> bytes:
        """The next bytes of the body; b"" after its end. Raises BackendError where it broke off."""
        while not self._pieces and not self._complete and self._failure is None:
            await self._wait()
        if self._pieces:
            data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            self._pieces, self._waiting = [], 0
            if self._paused and self._transport is not None:
                self._paused, self.heard = False, self._loop.time()
                self._transport.resume_reading()
            return data
        if self._failure is not None and not self._complete:
            raise self._failure
        return b""

    async def ahead(self, most: int) -> bytes:
        """The body as far as ``most`` bytes and what came with them, or to its end; all of it stays to be read."""
        while self._waiting < most and not self._complete and self._failure is None:
            await self._wait()
        return b"".join(self._pieces)

    async def pour(self, sink: Callable[[bytes], None]) -> None:
        """Give every further piece to ``sink`` as it comes, to the end. Raises BackendError where it broke off."""
        self._sink = sink
        self._flush()
        try:
            while not self._complete and self._failure is None:
                await self._wait()
        finally:
            self._sink = None
        if not self._complete and self._failure is not None:
            raise self._failure

    def hold(self, full: bool) -> None:
        """Stop reading while whoever takes the pieces has too many of them."""
        if self._transport is not None and full != self._paused and not self._complete:
            self._paused, self.heard = full, self._loop.time()  # until now we did not listen
            (self._transport.pause_reading if full else self._transport.resume_reading)()

    def _flush(self) -> None:
        if self._sink is not None and self._pieces:
            pieces, self._pieces, self._waiting = self._pieces, [], 0
            self._sink(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def fail(self, message: str) -> None:
        """End it with an error for whoever waits."""
        self._end(BackendError(message))
        self.abort()

    def abort(self) -> None:
        """Cut the connection."""
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """End an idle connection."""
        self.reusable = False
        if self._transport is not None:
            self._transport.close()

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _end(self, failure: BackendError) -> None:
        if not self._complete and self._failure is None:
            self._failure = failure
        self._wake()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by shape only

    def data_received(self, data: bytes) -> None:
        self.heard = self._loop.time()
        if not self._busy:
            self.abort()  # words that nobody asked for: whatever follows could not be told from an answer
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.fail(f"The backend sent no HTTP answer: {error}.")
            return
        if self._sink is not None:
            self._flush()
            if self._complete:
                self._wake()
            return
        if self._waiting > HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        if self._headed:
            self._wake()

    def eof_received(self) -> bool:
        if self._busy and self._headed and not self._framed and not self._complete:
            self._complete = True  # a body without a length ends with its connection
            self.reusable = False
            self._wake()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.reusable = False
        self._transport = None
        if self._busy and not self._complete:
            if self.uses > 1 and not self._header_bytes and not self._headed:
                self._end(StaleConnection("The connection was closed while it was kept."))
            else:
                self._end(BackendError("The backend closed the connection before its answer was complete."))
        self._on_lost(self)

    # httptools' callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._headed:
            return  # a trailer
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADER_BYTES:
            self.fail(f"The backend's headers are longer than {MAX_HEADER_BYTES} bytes.")
            return
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self.headers = []
            return
        if status > 599:
            self.fail(f"The backend answered with the status {status}, which HTTP does not know.")
            return
        self.status, self._headed = status, True
        names = {name for name, _ in self.headers}
        self._framed = bool(names & {b"content-length", b"transfer-encoding"}) or status in _WITHOUT_BODY
        self.reusable = self.reusable and self._parser.should_keep_alive() and self._framed
        if self._head_only:
            self._complete, self.reusable = True, False  # the parser waits for a body that does not come

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)
        self._waiting += len(body)

    def on_message_complete(self) -> None:
        if self._headed:
            self._complete, self._busy = True, False
            if self._transport is not None and self._transport.get_write_buffer_size():
                self.reusable = False  # it did not take the whole request: the rest could be read as the next one
