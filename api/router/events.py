"""Follows what engines tell of their caches, so that the desk knows which blocks each of them holds."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from energyopt.core.errors import EnergyoptError
from engine.routing.desk import Desk
from engine.routing.names import Scheme
from tuner.replay.sse import SseParser

from ..routes.kv_events import MEDIA, NAMING
from .backend import Backend
from .counts import Counts
from .errors import BackendError

_log = logging.getLogger(__name__)

PATH = b"/kv/events"
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0
"""Seconds between attempts, doubling; a backend without events is asked again now and then, as it may be replaced."""
_TIERS = {medium: tier for tier, medium in MEDIA.items()}


class GapError(BackendError):
    """Something was missed: what is known of the cache is void."""


@dataclass(slots=True)
class _Place:
    """How far a backend's events were followed; ``part`` is the batch of which only the beginning has come."""

    epoch: str = ""
    seq: int = 0
    part: int | None = None


class EventFollower:
    """Follows one backend's events for ever, from where it left off, or anew after a gap."""

    def __init__(self, backend: Backend, desk: Desk, counts: Counts) -> None:
        self._backend, self._desk, self._counts = backend, desk, counts
        self._place: _Place | None = None
        self._scheme: Scheme | None = None

    async def run(self) -> None:
        """Until cancelled."""
        pause = FIRST_PAUSE
        while True:
            try:
                if await self._follow():
                    pause = FIRST_PAUSE
            except GapError:
                self._counts.event_gaps[self._backend.name] += 1
                self._forget()
            except EnergyoptError as error:
                _log.debug("events of %s: %s", self._backend.name, error)
                if pause >= LONGEST_PAUSE:
                    self._forget()
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)

    async def _follow(self) -> bool:
        """One connection, to its end; False if the backend sends no events."""
        connection = await self._backend.pool.send(b"GET", PATH, self._headers(), b"")
        try:
            if connection.status != 200:
                self._forget()
                return False
            parser = SseParser()
            while data := await connection.read():
                for event in parser.feed(data):
                    self._take(_parsed(event))
            return True
        finally:
            self._backend.pool.release(connection)

    def _headers(self) -> list[tuple[bytes, bytes]]:
        headers = [(b"accept", b"text/event-stream")]
        if (key := self._backend.authorization) is not None:
            headers.append((b"authorization", key))
        if self._place is not None and self._place.epoch:
            headers.append((b"last-event-id", f"{self._place.epoch}:{self._place.seq}".encode()))
        return headers

    def _take(self, document: Mapping[str, object]) -> None:
        """One event. Raises GapError, BackendError for what cannot be understood."""
        match document.get("type"):
            case "hello":
                self._greeted(document)
            case "batch" if self._scheme is not None:
                self._batch(document)

    def _greeted(self, document: Mapping[str, object]) -> None:
        size, unit = document.get("block_size"), document.get("hash_unit")
        if document.get("naming") != NAMING or not isinstance(size, int) or not isinstance(unit, int):
            raise BackendError(f"{self._backend.name} names its blocks in a way that this router does not know.")
        if unit < 1 or size < unit or size % unit:
            raise BackendError(
                f"{self._backend.name} has blocks of {size} tokens named by {unit}: that is not possible."
            )
        scheme = Scheme(size, unit)
        if scheme != self._scheme or self._backend.name not in self._desk.fed:
            self._desk.feed(self._backend.name, scheme)
            if self._place is not None:  # what follows would continue what is not known any more
                raise GapError("The engine was replaced, or was down for a while.")
        self._scheme, self._place = scheme, self._place or _Place()

    def _batch(self, document: Mapping[str, object]) -> None:
        place, name = self._place, self._backend.name
        epoch, seq, events = document.get("epoch"), document.get("seq"), document.get("events")
        if place is None or not isinstance(epoch, str) or not isinstance(seq, int) or not isinstance(events, list):
            raise BackendError(f"{name} sent a batch of events that is none.")
        anew = bool(events) and isinstance(events[0], dict) and events[0].get("type") == "AllBlocksCleared"
        if name not in self._desk.fed or not (
            anew or (epoch == place.epoch and seq in (place.seq, place.seq + 1, place.part))
        ):
            raise GapError("A batch is missing.")
        for event in events:
            self._apply(event)
        place.epoch = epoch
        if document.get("more") is True:
            place.part = seq
        else:
            place.seq, place.part = seq, None

    def _apply(self, event: object) -> None:
        if not isinstance(event, dict) or event.get("group_idx", 0) != 0:
            return
        name, blocks = self._backend.name, self._desk.blocks
        tier = _TIERS.get(str(event.get("medium", "GPU")))
        if tier is None:
            return
        match event.get("type"):
            case "AllBlocksCleared":
                blocks.cleared(name, tier if "medium" in event else None)
            case "BlockStored":
                blocks.stored(name, _names(event.get("block_hashes")), tier)
            case "BlockRemoved":
                blocks.removed(name, _names(event.get("block_hashes")), tier)

    def _forget(self) -> None:
        self._desk.unfeed(self._backend.name)
        self._place = self._scheme = None


def _parsed(data: bytes) -> Mapping[str, object]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BackendError(f"An event is no JSON: {error}.") from error
    return document if isinstance(document, dict) else {}


def _names(hashes: object) -> Iterable[bytes]:
    if not isinstance(hashes, list):
        return ()
    try:
        return [bytes.fromhex(one) for one in hashes]
    except (TypeError, ValueError) as error:
        raise BackendError(f"An event names a block in no hexadecimal form: {error}.") from error
