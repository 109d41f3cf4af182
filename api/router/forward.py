"""One request on its way: chosen a backend, sent, answered, and sent again elsewhere if no byte has come back yet."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from starlette.types import Scope, Send

from api.errors import ended_by_client, problem_of
from energyopt.core.clock import Clock
from energyopt.core.errors import EnergyoptError, OverloadedError
from energyopt.core.units import Seconds
from engine.routing.desk import Asked
from engine.routing.names import BYTES_PER_TOKEN

from .backend import Backend
from .connection import Connection
from .counts import Counts
from .door import DOOR, Outlet
from .errors import BackendError
from .fleet import Fleet, Seat
from .headers import Header, back, onward, value_of
from .view import View, view_of

_log = logging.getLogger(__name__)

ELSEWHERE = frozenset((429, 502, 503, 504))
"""Answers that another backend may better: this one is overloaded, or stands before one that does not answer."""
SICK = frozenset((500, 502, 504))
"""Answers that speak of a fault of the backend; 503 is what a healthy one says when it is full, and 504 also one that
ended a request at the time limit which its client gave it."""
MAX_REASON = 16 * 2**10
"""Bytes of an error that are read to learn its reason."""


@dataclass(slots=True)
class Exchange:
    """A request while it is on its way. ``arrived`` is when the client had sent all of it."""

    scope: Scope
    send: Send
    body: bytes
    view: View
    arrived: Seconds
    started: bool = False
    events: bool = False

    @property
    def outlet(self) -> Outlet:
        outlet: Outlet = self.scope["extensions"][DOOR]
        return outlet


class Forwarder:
    """Carries requests to backends and answers back, byte for byte. ``strip_key``: the client's key was for us."""

    def __init__(self, fleet: Fleet, counts: Counts, clock: Clock, *, retries: int, strip_key: bool) -> None:
        self._fleet, self._counts, self._clock = fleet, counts, clock
        self._retries, self._strip_key = retries, strip_key

    async def carry(self, scope: Scope, send: Send, body: bytes) -> None:
        """Answer one request; when the client goes away, so does the request to the backend."""
        arrived = self._clock.now()
        exchange = Exchange(scope, send, body, view_of(body, scope["headers"]), arrived)
        departure = _Departure(exchange.outlet)
        try:
            await self._carry(exchange)
        except asyncio.CancelledError:
            if not departure.happened:
                raise
        finally:
            departure.ignore()

    async def _carry(self, exchange: Exchange) -> None:
        tried: list[str] = []
        while True:
            try:
                seat = await self._seat(exchange, tried)
            except OverloadedError as error:
                self._counts.refused["draining" if self._fleet.draining else "full"] += 1
                await _refuse(exchange, error)
                return
            tried.append(seat.backend.name)
            if await self._attempt(exchange, seat, tried):
                return
            self._counts.retries[seat.backend.name] += 1

    async def _seat(self, exchange: Exchange, tried: list[str]) -> Seat:
        view, start = exchange.view, self._clock.now()
        asked = Asked(view.prompt, start, view.session, view.output_tokens)
        seat = await self._fleet.seat(asked, view.model, tried)
        self._counts.queued.add(self._clock.now() - start)
        return seat

    async def _attempt(self, exchange: Exchange, seat: Seat, tried: list[str]) -> bool:
        """One backend's try; False if nothing has reached the client and another backend may do better."""
        backend, connection, outcome, produced = seat.backend, None, "gone", 0
        try:
            connection = await self._send(exchange, backend)
            late = connection.status == HTTPStatus.GATEWAY_TIMEOUT and ended_by_client(
                await connection.ahead(MAX_REASON)
            )
            if connection.status in ELSEWHERE and not late and self._may_go_on(exchange, tried):
                outcome = str(connection.status)
                self._judge(backend, connection.status)
                return False
            self._counts.prompt_tokens[backend.name] += seat.ticket.prompt_tokens
            self._counts.hit_tokens[backend.name] += min(seat.cached_tokens, seat.ticket.prompt_tokens)
            produced = await self._relay(exchange, seat, connection)
            outcome = str(connection.status)
            if not late:
                self._judge(backend, connection.status)
        except BackendError as error:
            outcome = "broken"
            self._fault(backend, error)
            if not exchange.started and self._may_go_on(exchange, tried):
                return False
            await _break(exchange, error)
        finally:
            self._counts.requests[backend.name, outcome] += 1
            if connection is not None:
                backend.pool.release(connection)
            self._fleet.leave(seat, produced)
        return True

    def _may_go_on(self, exchange: Exchange, tried: list[str]) -> bool:
        """Whether there is another backend to try."""
        return len(tried) <= self._retries and bool(self._fleet.fit(exchange.view.model, tried))

    async def _send(self, exchange: Exchange, backend: Backend) -> Connection:
        scope = exchange.scope
        headers = onward(scope["headers"], authorization=backend.authorization, strip_key=self._strip_key)
        if value_of(headers, b"x-request-id") is None:
            headers.append((b"x-request-id", uuid.uuid4().hex.encode()))
        path: bytes = scope["raw_path"]
        if scope["query_string"]:
            path += b"?" + scope["query_string"]
        self._counts.delay.add(self._clock.now() - exchange.arrived)
        return await backend.pool.send(scope["method"].encode(), path, headers, exchange.body)

    async def _relay(self, exchange: Exchange, seat: Seat, connection: Connection) -> int:
        """Pass the answer on as it comes; returns about how many tokens it had: pieces of a stream, or by length."""
        send = exchange.send
        headers = back(connection.headers)
        exchange.started, exchange.events = True, _is_event_stream(headers)
        await send({"type": "http.response.start", "status": connection.status, "headers": headers})
        data = await connection.read()
        self._fleet.desk.book.began(seat.ticket)
        self._counts.first_byte(seat.backend.name).add(self._clock.now() - exchange.arrived)
        counted = _Counted(exchange.outlet.pour)
        if connection.complete or not data:
            await send({"type": "http.response.body", "body": data, "more_body": False})
            counted.add(data)
        else:
            counted(data)
            await _poured(exchange.outlet, connection, counted)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        return counted.pieces if exchange.events else counted.size // BYTES_PER_TOKEN

    def _judge(self, backend: Backend, status: int) -> None:
        if status in SICK:
            self._fault(backend, BackendError(f"{backend.name} answered {status}."))
        else:
            backend.health.succeeded()

    def _fault(self, backend: Backend, error: BackendError) -> None:
        backend.trouble = str(error)
        if backend.health.failed(self._clock.now()):
            _log.warning("%s takes no requests for a while: %s", backend.name, error)


async def _refuse(exchange: Exchange, error: EnergyoptError) -> None:
    """An answer of the router's own, in OpenAI's shape."""
    problem = problem_of(error)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(problem.body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in problem.headers.items()]
    await exchange.send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await exchange.send({"type": "http.response.body", "body": problem.body})


async def _break(exchange: Exchange, error: BackendError) -> None:
    """Tell the client that no answer comes, or that it is incomplete: never a whole one that is not.

    An event stream ends with an error event and without ``[DONE]``; any other body is cut with its connection.
    """
    if not exchange.started:
        await _refuse(exchange, error)
    elif exchange.events:
        event = b"\n\nevent: error\ndata: " + problem_of(error).body + b"\n\n"
        await exchange.send({"type": "http.response.body", "body": event, "more_body": False})
    else:
        exchange.outlet.cut()


def _is_event_stream(headers: list[Header]) -> bool:
    """Whether an error event may follow what was sent: an event stream whose length was not announced."""
    kind = value_of(headers, b"content-type") or b""
    return kind.lower().startswith(b"text/event-stream") and value_of(headers, b"content-length") is None


class _Counted:
    """Passes pieces on and counts them."""

    def __init__(self, pour: Callable[[bytes], None]) -> None:
        self.pieces = self.size = 0
        self._pour = pour

    def __call__(self, data: bytes) -> None:
        self.add(data)
        self._pour(data)

    def add(self, data: bytes) -> None:
        self.pieces += 1
        self.size += len(data)


async def _poured(outlet: Outlet, connection: Connection, sink: Callable[[bytes], None]) -> None:
    """The rest of a body from one connection into the other, as fast as the slower of the two."""
    outlet.watch(connection.hold)
    try:
        await connection.pour(sink)
    finally:
        outlet.watch(None)


class _Departure:
    """Watches for the client's going away, which cancels the task that serves it."""

    def __init__(self, outlet: Outlet) -> None:
        self.happened = False
        task = asyncio.current_task()
        assert task is not None
        self._task, self._outlet = task, outlet
        outlet.leaving(self._gone)

    def ignore(self) -> None:
        """The answer is complete: what the client does now is no departure."""
        self._outlet.leaving(None)

    def _gone(self) -> None:
        self.happened = True
        self._task.cancel()
