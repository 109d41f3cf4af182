"""The server's side of a client's connection: bounds on its head, and a way to cut it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

DOOR = "energyopt.door"
"""The scope's extension that is the ``Outlet`` of the client's connection."""
_REFUSAL = b"HTTP/1.1 %b\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
_WORDS = b'{"error": {"message": "%b", "type": "invalid_request_error"}}'


class Outlet(Protocol):
    """Beside ASGI: a way to cut a body, so that it is not taken for a whole one, and a short way for its pieces."""

    def cut(self) -> None:
        """End the connection at once."""
        ...

    def pour(self, data: bytes) -> None:
        """Write a piece of a body whose answer has begun, framed as ASGI's ``send`` would, without a task's turn."""
        ...

    def watch(self, on_full: Callable[[bool], None] | None) -> None:
        """Let ``on_full`` hear when the client has too much to read, and when it has not any more."""
        ...

    def leaving(self, on_gone: Callable[[], None] | None) -> None:
        """Let ``on_gone`` hear when the client has gone; at once if it is gone already."""
        ...


class Door(HttpToolsProtocol):
    """Counts what comes before a head is complete, also within a line that does not end, and for how long it comes.

    A client may send its next requests before the first is answered (pipelining): ``cycle`` is then of the newest, and
    what is written belongs to the one that is ``_served``.
    """

    max_head_bytes = 64 * 2**10
    head_seconds = 60.0
    _limit: asyncio.TimerHandle | None = None
    _served: RequestResponseCycle | None = None
    _head_bytes = 0
    _in_body = False
    _refused = False
    _on_full: Callable[[bool], None] | None = None
    _on_gone: Callable[[], None] | None = None

    def cut(self) -> None:
        self.transport.abort()

    def pour(self, data: bytes) -> None:
        cycle = self._served
        if cycle is None or cycle.disconnected or not data:
            return
        if cycle.chunked_encoding:
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            cycle.expected_content_length -= len(data)
            self.transport.write(data)

    def watch(self, on_full: Callable[[bool], None] | None) -> None:
        self._on_full = on_full
        if on_full is not None and self.flow.write_paused:
            on_full(True)

    def leaving(self, on_gone: Callable[[], None] | None) -> None:
        self._on_gone = on_gone
        if on_gone is not None and self.transport.is_closing():
            on_gone()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._on_full is not None:
            self._on_full(True)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._on_full is not None:
            self._on_full(False)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_begins()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._head_ended()
        if self._served is not None and not self._served.response_complete:
            self._served.disconnected = True
            self._served.message_event.set()
        if self._on_gone is not None:
            self._on_gone()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._served = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if not self._in_body:
            self._head_bytes += len(data)
        super().data_received(data)
        if not self._in_body and self._head_bytes > self.max_head_bytes:
            self._refuse_long_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._limit is None:
            self._head_begins()
        self.scope["extensions"] = {DOOR: self}  # type: ignore[dict-item]

    def on_headers_complete(self) -> None:
        self._head_ended()
        if self._refused:
            return  # it came in one piece with what was refused, and the connection ends
        self._in_body, self._head_bytes = True, 0
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > self.max_head_bytes:
            self._refuse_long_head()
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body, self._head_bytes = False, 0
        if not self._refused:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(b"400 Bad Request", b"This is no valid HTTP request.")

    def _head_begins(self) -> None:
        self._limit = self.loop.call_later(self.head_seconds, self._refuse_slow_head)

    def _head_ended(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _refuse_slow_head(self) -> None:
        self._limit = None
        if self._served is not None and not self._served.response_complete:
            self._head_begins()  # who waits for an answer is not slow, and reading may be paused
            return
        self._refuse(b"408 Request Timeout", b"The headers did not come in time.")

    def _refuse_long_head(self) -> None:
        self._refuse(b"431 Request Header Fields Too Large", b"The headers are longer than allowed.")

    def _refuse(self, status: bytes, words: bytes) -> None:
        """Answer with ``words`` and take nothing more; where another answer is under way, end the connection alone."""
        refused, self._refused = self._refused, True
        if refused or self.transport.is_closing():
            return
        served = self._served
        if served is not None and not served.response_complete:
            if not served.more_body or served is not self.cycle or served.response_started:
                self.transport.abort()  # words of ours would be taken for a part of the answer that is under way
                return
            served.disconnected = True  # its own body is what is refused: these words are its answer
            served.message_event.set()
        body = _WORDS % words
        self.transport.write(_REFUSAL % (status, len(body), body))
        self.transport.close()


def door(max_header_bytes: int, head_seconds: float) -> type[Door]:
    """The protocol class of a server that takes so many bytes of URL and header lines a request, in so many seconds."""
    return type("Door", (Door,), {"max_head_bytes": max_header_bytes, "head_seconds": head_seconds})
