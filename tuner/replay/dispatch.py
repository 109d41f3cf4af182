"""Sends requests and keeps what became of them: the one place that counts."""

from __future__ import annotations

import asyncio
from collections import Counter

from energyopt.core.clock import Clock
from energyopt.core.errors import EngineError, PromptTooLongError
from energyopt.core.units import Seconds

from .ask import Ask, ReplayClient, Reply
from .pacer import Pacer

_ABORT_EVERY = Seconds(0.02)


class Dispatcher:
    """Passes requests to the client. ``replies`` has every one that ended, in that order, warm-up included.

    A conversation that outgrew the context ends with a request that was not served: ``cut`` has those, and they are in
    ``replies`` as little as in ``errors``. ``lags`` are seconds between when a request should have left and when it
    did. Belongs to one event loop.
    """

    def __init__(self, client: ReplayClient, clock: Clock, pacer: Pacer) -> None:
        self._client, self._clock, self._pacer = client, clock, pacer
        self.replies: list[Reply] = []
        self.asks: dict[str, Ask] = {}
        self.lags: list[float] = []
        self.errors: Counter[str] = Counter()
        self.cut: list[Reply] = []
        self.stopping = asyncio.Event()
        self._in_flight: set[str] = set()
        self._sent = 0

    def next_id(self, session: str) -> str:
        self._sent += 1
        return f"{session}/{self._sent}"

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    async def send(self, ask: Ask) -> Reply:
        """Send and note. Raises EngineDeadError when the engine is gone."""
        self.asks[ask.id] = ask
        self._in_flight.add(ask.id)
        self._pacer.busy()
        self.lags.append(max(0.0, self._clock.now() - ask.due))
        try:
            reply = await self._client.send(ask)
        finally:
            self._pacer.idle()
            self._in_flight.discard(ask.id)
        if ask.grown and isinstance(reply.error, PromptTooLongError):
            self.cut.append(reply)
            return reply
        self.replies.append(reply)
        if reply.error is not None:
            self.errors[type(reply.error).__name__] += 1
        return reply

    async def stop(self, patience: Seconds = Seconds(10.0)) -> None:
        """Begin nothing new, abort what is in flight and wait for it. Raises EngineError after ``patience``."""
        self.stopping.set()
        for _ in range(max(1, round(patience / _ABORT_EVERY))):
            if not self._in_flight:
                return
            # Again in every round: an id may have been between the client and the engine in the last one.
            for request_id in tuple(self._in_flight):
                self._client.abort(request_id)
            await asyncio.sleep(_ABORT_EVERY)
        if self._in_flight:
            raise EngineError(f"{len(self._in_flight)} requests did not end within {patience:g} s of their abort.")
