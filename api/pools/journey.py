"""One request through both pools: prefill, decode, and both again if an engine dies on the way.

Nothing that a client sent is lost while some engine comes back: a prefill leg that fails is left out, so that the
decode engine computes the prompt; a decode leg that fails is asked again from the start, and what the client already
has of its answer is not sent twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack

import aiohttp
from pydantic_core import from_json

from api.errors import ended_by_client
from energyopt.core.clock import Clock
from energyopt.core.errors import EngineDeadError
from engine.disagg.params import FIELD

from .legs import Legs, with_offer
from .replay import Replay, StreamBrokeError, StreamDiffersError
from .workers import SHUNNED, Pools, Role, Worker

logger = logging.getLogger(__name__)

PATIENCE = 180.0
"""Seconds that a request waits for an engine to come back, tries included."""

_PREFILL_TRIES = 2
_MOST_LOST = 6
"""Engines that one request may lose on its way: one that kills whatever computes it must not go through them all for as
long as ``PATIENCE``."""

_MOST_SICK = 3
"""Answers of engines' own faults before one of them is passed on: this request may be what they cannot do."""
_LOOK_AGAIN = 0.05
_SICK = (500, 502, 503, 504)
_NO_PLACE = 503
"""What an engine says that has no place for this request, or has died and is not replaced yet: the next try goes to
another. It may have one for others, so nobody else is told."""
BROKEN = (aiohttp.ClientError, ConnectionError, asyncio.TimeoutError, StreamBrokeError)

DIFFERS = (
    b'event: error\ndata: {"error": {"message": "An engine was lost, and its successor continued differently.", '
    b'"type": "server_error", "param": null, "code": "engine_unavailable"}}\n\n'
)


class Journey:
    """``headers`` go with every leg. ``counts`` counts tries, retries and legs that were left out, by name.

    ``open`` comes first; then ``status`` and ``headers`` are known and ``chunks`` gives the body.
    """

    def __init__(
        self,
        pools: Pools,
        session: aiohttp.ClientSession,
        clock: Clock,
        counts: Counter[str],
        path: str,
        legs: Legs,
        headers: Mapping[str, str],
    ) -> None:
        self._pools = pools
        self._session = session
        self._clock = clock
        self._counts = counts
        self._path = path
        self._legs = legs
        self._sent = headers
        self._deadline = clock.now() + PATIENCE
        self._leg = ExitStack()
        self._response: aiohttp.ClientResponse | None = None
        self._worker: Worker | None = None
        self._lost = self._sick = 0
        self._no_place: dict[str, float] = {}

    @property
    def status(self) -> int:
        return 0 if self._response is None else self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return {} if self._response is None else self._response.headers

    async def open(self) -> None:
        """Both legs, as far as the beginning of an answer: that may be the prefill's, if the client's time ended in it.

        Raises EngineDeadError after ``PATIENCE``.
        """
        while True:
            offer = await self._prefill()
            if self._response is not None:
                return
            body = self._legs.decode if offer is None else with_offer(self._legs.decode, offer)
            try:
                await self._begin(body)
            except BROKEN as error:
                await self._broke(error)
            else:
                return

    async def whole(self) -> bytes:
        """The body of an answer that is no stream, asked for again if it breaks off."""
        while True:
            try:
                assert self._response is not None  # ``open`` came first
                raw = await self._response.read()
                self._served()
                return raw
            except BROKEN as error:
                await self._broke(error)
                await self.open()

    async def chunks(self) -> AsyncGenerator[bytes]:
        """The events of a stream, each once."""
        replay = Replay()
        while True:
            try:
                assert self._response is not None  # ``open`` came first
                if self.status != 200:  # what was asked for again is refused: its words are the stream's end
                    yield b"event: error\ndata: %b\n\n" % b" ".join((await self._response.read()).splitlines())
                    return
                async for data in self._response.content.iter_any():
                    if passed := replay.feed(data):
                        yield passed
                replay.end()
                self._served()
                return
            except StreamDiffersError:
                self._counts["differs"] += 1
                yield DIFFERS
                return
            except BROKEN as error:
                await self._broke(error)
                replay.again()
                await self.open()

    def close(self) -> None:
        """End the current try; the engine notices that nobody waits."""
        if self._response is not None:
            self._response.close()
            self._response = None
        self._leg.close()

    async def _prefill(self) -> object | None:
        """What the prefill leg offers; None if there is none, or no engine for it: then the decode leg computes all."""
        if self._legs.prefill is None:
            return None
        for _ in range(_PREFILL_TRIES):
            with self._pools.leg(Role.PREFILL) as worker:
                if worker is None:
                    break
                try:
                    url = f"{worker.url}{self._path}"
                    response = await self._session.post(url, data=self._legs.prefill, headers=self._sent)
                    raw = await response.read()  # to its end, which frees the connection
                except BROKEN as error:
                    logger.warning("%s broke off a prefill: %s", worker.name, error)
                    self._pools.shun(worker)
                    self._counts["prefill_retries"] += 1
                    continue
                self._counts["prefill_legs"] += 1
                if response.status != 200:
                    self._response = response if ended_by_client(raw) else None
                    return None
                self._pools.served(worker, Role.PREFILL)
                return _offer(raw)
        self._counts["prefill_left_out"] += 1
        return None

    async def _begin(self, body: bytes) -> None:
        """Ask a decode engine, or whichever is up."""
        while True:
            without = [name for name, until in self._no_place.items() if self._clock.now() < until]
            worker = self._leg.enter_context(self._pools.leg(Role.DECODE, fallback=True, without=without))
            if worker is not None:
                break
            self._leg.close()
            self._check_patience("No engine is up.")
            await asyncio.sleep(_LOOK_AGAIN)
        self._worker = worker
        self._counts["decode_legs"] += 1
        response = await self._session.post(f"{worker.url}{self._path}", data=body, headers=self._sent)
        self._response = response
        if response.status in _SICK and self._sick < _MOST_SICK:
            if ended_by_client(await response.read()):
                return
            self._sick += 1
            if response.status == _NO_PLACE:
                self._no_place[worker.name] = self._clock.now() + SHUNNED
            raise StreamBrokeError(f"it answered {response.status}")

    def _served(self) -> None:
        if self._worker is not None and self.status == 200:
            self._pools.served(self._worker, Role.DECODE)

    async def _broke(self, error: Exception) -> None:
        name = "" if self._worker is None else self._worker.name
        logger.warning("%s broke off an answer, which is asked for again: %s", name, str(error) or type(error).__name__)
        self._counts["decode_retries"] += 1
        if self._worker is not None and not isinstance(error, StreamBrokeError):
            self._pools.shun(self._worker)
        self.close()
        self._lost += not isinstance(error, aiohttp.ClientConnectorError)  # it was gone before it had the request
        if self._lost >= _MOST_LOST:
            raise EngineDeadError(f"{self._lost} engines broke off this request one after the other; it is given up.")
        self._check_patience("The engine that answered was lost.")
        await asyncio.sleep(_LOOK_AGAIN)

    def _check_patience(self, why: str) -> None:
        if self._pools.closed:
            raise EngineDeadError(f"{why} The service ends; the request can be sent again.")
        if self._clock.now() > self._deadline:
            raise EngineDeadError(f"{why} None came back within {PATIENCE:g} s; the request can be sent again.")


def _offer(raw: bytes) -> object | None:
    try:
        reply = from_json(raw)
    except ValueError:
        return None
    return reply.get(FIELD) if isinstance(reply, dict) else None
