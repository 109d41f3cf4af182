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
_END = b"\xff" * _NUMBER_BYTES
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
        self._twice: dict[int, int] = {}

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
            await self._begin(context)
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
        if self._seen is not None and number > self._seen + 1:
            missed = await self._repeated(context, self._seen + 1)
            for one in range(self._seen + 1, number):
                if one not in missed:
                    raise GapError(f"Batch {one} is missing.")
                self._take(missed[one])
        self._take(payload)
        self._seen = number

    async def _begin(self, context: Any) -> None:
        """Take what the engine still keeps of the past. One that does not answer may not be up yet."""
        kept = await self._repeated(context, 0)
        for number in sorted(kept):
            self._take(kept[number])
            self._seen = number

    async def _repeated(self, context: Any, first: int) -> dict[int, bytes]:
        """Batches from ``first`` on, by number, as far as the engine keeps and repeats them."""
        found: dict[int, bytes] = {}
        if self._replay is None:
            return found
        socket = self._socket(context, "DEALER", self._replay)
        try:
            async with asyncio.timeout(_REPLAY_SECONDS):
                await socket.send_multipart([b"", first.to_bytes(_NUMBER_BYTES, "big")])
                while (frames := await socket.recv_multipart())[2:3] != [_END]:
                    number, payload = _parted(frames[1:])
                    found[number] = payload
                    self._twice[number] = hash(payload)
        except TimeoutError:
            _log.debug("%s does not repeat its KV events", self._backend.name)
        finally:
            socket.close(linger=0)
        return found

    def _socket(self, context: Any, kind: str, address: str) -> Any:
        socket = context.socket(getattr(self._codes, kind))
        socket.setsockopt(self._codes.MAXMSGSIZE, LONGEST)
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


def _parted(frames: list[bytes]) -> tuple[int, bytes]:
    """Number and payload of a message of topic, number, payload."""
    if len(frames) != 3 or len(frames[1]) != _NUMBER_BYTES:
        raise BackendError(f"A KV event message has {len(frames)} parts: expected topic, number of 8 bytes, batch.")
    return int.from_bytes(frames[1], "big"), frames[2]
