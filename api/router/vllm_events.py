"""Follows the KV events that a vLLM server publishes over ZeroMQ, so that the desk knows which blocks it holds.

vLLM does not list what it holds already. With its replay endpoint a follower begins with the batches that it still
keeps; without, what was stored before stays unknown, and a gap makes everything unknown.
"""

from __future__ import annotations

import asyncio
import logging
from types import ModuleType
from typing import Any

from energyopt.core.errors import EnergyoptError
from engine.routing.desk import MAX_BLOCKS, Desk
from engine.routing.foreign import ForeignNames
from engine.routing.names import Scheme

from .backend import Backend
from .counts import Counts
from .errors import BackendError
from .events import FIRST_PAUSE, LONGEST_PAUSE, GapError
from .vllm_batch import LONGEST, Cleared, Event, Removed, Stored, events_of, optional_module

_log = logging.getLogger(__name__)

_NUMBER_BYTES = 8
_END = (1 << 8 * _NUMBER_BYTES) - 1
"""The number of what follows the last repeated batch."""
_REPLAY_SECONDS = 5.0


class VllmFollower:
    """Follows one backend for ever; ``endpoint`` is where it publishes, ``replay`` where it repeats, if it does.

    Raises ConfigError without pyzmq and msgpack.
    """

    def __init__(self, backend: Backend, desk: Desk, counts: Counts, endpoint: str, replay: str | None) -> None:
        optional_module("msgpack", "msgpack")
        self._zmq: ModuleType = optional_module("zmq.asyncio", "pyzmq")
        self._codes: ModuleType = optional_module("zmq", "pyzmq")
        self._backend, self._desk, self._counts = backend, desk, counts
        self._endpoint, self._replay = endpoint, replay
        self._names: ForeignNames | None = None
        self._seen: int | None = None
        self._twice: dict[int, int] = {}  # batches that were taken when they were repeated, and may come after all

    async def run(self) -> None:
        """Until cancelled."""
        pause = FIRST_PAUSE
        context = self._zmq.Context()
        try:
            while True:
                try:
                    await self._follow(context)
                except GapError:
                    self._counts.event_gaps[self._backend.name] += 1
                    pause = FIRST_PAUSE
                except EnergyoptError as error:
                    _log.warning("KV events of %s: %s", self._backend.name, error)
                self._forget()
                await asyncio.sleep(pause)
                pause = min(LONGEST_PAUSE, 2 * pause)
        finally:
            context.destroy(linger=0)

    async def _follow(self, context: Any) -> None:
        """One subscription, until something was missed."""
        socket = self._socket(context, "SUB", self._endpoint)
        try:
            socket.setsockopt(self._codes.SUBSCRIBE, b"")
            await self._catch_up(context, 0)
            while True:
                number, payload = _parted(await socket.recv_multipart())
                await self._came(context, number, payload)
        finally:
            socket.close(linger=0)

    async def _came(self, context: Any, number: int, payload: bytes) -> None:
        """A batch, after those that were missed before it. Raises GapError, BackendError.

        One that was repeated may come after all: it tells nothing new, and is no new beginning.
        """
        if self._names is not None and self._backend.name not in self._desk.fed:
            raise GapError("The engine was down for a while.")
        if self._twice.pop(number, None) == hash(payload):
            return
        if self._seen is not None and number <= self._seen:
            raise GapError("The engine began anew.")
        self._twice = {later: name for later, name in self._twice.items() if later > number}
        if self._seen is not None and number > self._seen + 1:
            await self._catch_up(context, self._seen + 1)
            if self._seen < number - 1:
                raise GapError(f"Batch {self._seen + 1} is missing.")
        if self._seen is None or number > self._seen:
            self._take(payload)
            self._seen = number
        elif self._twice.pop(number, None) != hash(payload):  # else it was repeated with those before it
            raise GapError("The engine began anew.")

    async def _catch_up(self, context: Any, first: int) -> None:
        """Take what the engine still keeps from ``first`` on, up to a gap. One that does not answer may not be up yet.

        Of the past, whatever it keeps is a beginning.
        """
        for number, payload in sorted((await self._repeated(context, first)).items()):
            if self._seen is not None and number != self._seen + 1:
                return
            self._take(payload)
            self._seen = number
            self._twice[number] = hash(payload)

    async def _repeated(self, context: Any, first: int) -> dict[int, bytes]:
        """Batches from ``first`` on, by number, as far as the engine keeps and repeats them."""
        found: dict[int, bytes] = {}
        if self._replay is None:
            return found
        socket = self._socket(context, "DEALER", self._replay)
        try:
            async with asyncio.timeout(_REPLAY_SECONDS):
                await socket.send_multipart([b"", first.to_bytes(_NUMBER_BYTES, "big")])
                while (answer := _parted(_unwrapped(await socket.recv_multipart())))[0] != _END:
                    number, payload = answer
                    found[number] = payload
        except TimeoutError:
            _log.debug("%s does not repeat its KV events", self._backend.name)
        finally:
            socket.close(linger=0)
        return found

    def _socket(self, context: Any, kind: str, address: str) -> Any:
        socket = context.socket(getattr(self._codes, kind))
        socket.setsockopt(self._codes.MAXMSGSIZE, LONGEST)
        socket.setsockopt(self._codes.IPV6, 1)  # beside IPv4; without, such a host is never reached and nobody told
        socket.connect(address)
        return socket

    def _take(self, payload: bytes) -> None:
        for event in events_of(payload):
            self._apply(event)

    def _apply(self, event: Event) -> None:
        name, blocks = self._backend.name, self._desk.blocks
        match event:
            case Cleared():
                blocks.cleared(name)
            case Removed() if self._names is not None:
                blocks.removed(name, self._names.of(event.hashes), event.tier)
            case Stored():
                names = self._named(event).stored(event.hashes, event.parent, event.tokens)
                blocks.stored(name, names, event.tier)

    def _named(self, event: Stored) -> ForeignNames:
        """The names for blocks of this size, which is the same as long as an engine lives."""
        if event.block_tokens < 1:
            raise BackendError(f"{self._backend.name} has blocks of {event.block_tokens} tokens: that is not possible.")
        if self._names is None:
            self._names = ForeignNames(event.block_tokens, MAX_BLOCKS)
            self._desk.feed(self._backend.name, Scheme(event.block_tokens, event.block_tokens))
        elif self._names.block_tokens != event.block_tokens:
            raise GapError("The engine was replaced by one with other blocks.")
        return self._names

    def _forget(self) -> None:
        self._desk.unfeed(self._backend.name)
        self._names = self._seen = None
        self._twice.clear()


def _unwrapped(frames: list[bytes]) -> list[bytes]:
    """A repeated message as it was published. SGLang, and vLLM before it had topics, repeat without one."""
    return [b"", *frames[1:]] if len(frames) == 3 else frames[1:]


def _parted(frames: list[bytes]) -> tuple[int, bytes]:
    """Number and payload of a message of topic, number, payload."""
    if len(frames) != 3 or len(frames[1]) != _NUMBER_BYTES:
        raise BackendError(f"A KV event message has {len(frames)} parts: expected topic, number of 8 bytes, batch.")
    return int.from_bytes(frames[1], "big"), frames[2]
