"""All backends: who may take a request now, who waits for a place, and in what order they get one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from energyopt.core.clock import Clock
from energyopt.core.errors import OverloadedError
from energyopt.core.units import Seconds
from engine.backlog import Turnover
from engine.routing.book import Ticket
from engine.routing.desk import Asked, Desk

from .backend import Backend

UNHEALTHY_RETRY_AFTER = Seconds(5.0)


@dataclass(slots=True)
class Seat:
    """A place at a backend, to be given back once."""

    backend: Backend
    ticket: Ticket
    cached_tokens: int


@dataclass(slots=True, eq=False)
class _Waiter:
    asked: Asked
    model: str | None
    tried: frozenset[str]
    seat: asyncio.Future[Seat] = field(default_factory=asyncio.Future)


class Fleet:
    """Places requests by the desk's policy. A full fleet lets ``max_queue`` requests wait, first come first served."""

    def __init__(
        self, backends: Sequence[Backend], desk: Desk, clock: Clock, *, max_queue: int, queue_seconds: Seconds
    ) -> None:
        self.backends = tuple(backends)
        self.desk = desk
        self.draining = False
        self._clock = clock
        self._max_queue, self._patience = max_queue, queue_seconds
        self._waiting: deque[_Waiter] = deque()
        self._turnover = Turnover()

    @property
    def now(self) -> Seconds:
        """The clock by which ejections end."""
        return self._clock.now()

    @property
    def queued(self) -> int:
        """Requests that wait for a place."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        return sum(backend.running for backend in self.backends)

    def fit(self, model: str | None, tried: Collection[str] = ()) -> list[Backend]:
        """Backends that a request for ``model`` may go to, full or not.

        Where none is fit, ejected ones are tried rather than nobody; a model that no backend lists goes to any, whose
        answer then says so.
        """
        now = self._clock.now()
        left = [backend for backend in self.backends if backend.name not in tried] if tried else self.backends
        up = [one for one in left if one.health.fit(now)] or [one for one in left if one.health.last_resort()]
        return [one for one in up if one.serves(model)] or ([] if tried else up)

    async def seat(self, asked: Asked, model: str | None, tried: Collection[str] = ()) -> Seat:
        """A place at a backend that was not tried yet; waits for one if all are full.

        Raises OverloadedError: nobody is healthy, the queue is full, or no place came in time.
        """
        if self.draining:
            raise OverloadedError("This router drains and takes no new request.", retry_after=UNHEALTHY_RETRY_AFTER)
        fit = self.fit(model, tried)
        if not fit:
            raise OverloadedError("No backend is healthy.", retry_after=UNHEALTHY_RETRY_AFTER)
        seat = None if self._waiting else self._place(asked, fit)
        if seat is not None:
            return seat
        if len(self._waiting) >= self._max_queue:
            raise self._overloaded(f"Every backend is full, and {self._max_queue} requests wait already (max_queue).")
        waiter = _Waiter(asked, model, frozenset(tried))
        self._waiting.append(waiter)
        self._serve_waiting()
        try:
            async with asyncio.timeout(self._patience):
                seat = await waiter.seat
                return seat
        except TimeoutError as error:
            raise self._overloaded(f"No backend had a place within {self._patience:g} s (queue_seconds).") from error
        finally:
            if seat is None:
                self._abandon(waiter)

    def leave(self, seat: Seat, output_tokens: int = 0) -> None:
        """The request has ended; the place goes to whoever waits longest and may take it."""
        now = self._clock.now()
        seat.backend.running -= 1
        self.desk.book.ended(seat.ticket, now, output_tokens)
        self._turnover.ended(now)
        if self._waiting:
            self._serve_waiting()

    def changed(self) -> None:
        """A backend came up or takes requests again."""
        self._serve_waiting()

    def close(self) -> None:
        """Take nothing more, and end the waiting."""
        self.draining = True
        for waiter in tuple(self._waiting):
            if not waiter.seat.done():
                waiter.seat.set_exception(self._overloaded("This router ends."))
        self._waiting.clear()

    def _place(self, asked: Asked, fit: Sequence[Backend]) -> Seat | None:
        free = {backend.name: backend for backend in fit if not backend.full}
        if not free:
            return None
        choice, ticket = self.desk.give(asked, list(free))
        backend = free[choice.worker]
        backend.running += 1
        return Seat(backend, ticket, choice.cached_tokens)

    def _serve_waiting(self) -> None:
        stuck: set[tuple[str | None, frozenset[str]]] = set()
        for waiter in tuple(self._waiting):
            wish = (waiter.model, waiter.tried)
            if wish in stuck:
                continue
            seat = self._place(waiter.asked, self.fit(waiter.model, waiter.tried))
            if seat is None:
                stuck.add(wish)
            else:
                self._waiting.remove(waiter)
                waiter.seat.set_result(seat)

    def _abandon(self, waiter: _Waiter) -> None:
        """A waiter gave up; it gives back what it may have been given in the same moment."""
        if waiter in self._waiting:
            self._waiting.remove(waiter)
            waiter.seat.cancel()
        elif waiter.seat.done() and not waiter.seat.cancelled() and waiter.seat.exception() is None:
            self.leave(waiter.seat.result())

    def _overloaded(self, message: str) -> OverloadedError:
        return OverloadedError(message, retry_after=self._turnover.retry_after())
