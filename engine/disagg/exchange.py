"""An engine's dealings with the others: blocks it lends, blocks it pulls, heartbeats. Satisfies ``ports.Remote``.

The step loop's thread calls it and never waits: pulls run on a thread for each peer.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from energyopt.core.clock import Clock

from ..kv.checksum import checksum
from ..kv.ports import BlockMover, TierCounts
from ..kv.tier_counter import TierCounter
from .errors import HandOverError, Reason
from .leases import Lease, LeaseBook
from .params import Offer
from .peer import Peer
from .ports import CHUNK, NOTHING_PULLED, REMOTE, Ask, KvSource, Part, Pulled

logger = logging.getLogger(__name__)

MOST_PEERS = 64
"""Engines that are talked with at once; each has two threads. The one asked longest ago makes room."""

_CLOSE_PATIENCE = 2.0
_BEATS = 3
"""Heartbeats in the time that a lease lasts without one."""


@dataclass(frozen=True, slots=True)
class Address:
    """How other engines reach this one. ``mode`` is what its offers say, and the only one that it takes."""

    engine: str
    host: str = "127.0.0.1"
    port: int = 0
    mode: str = "pull"


class Exchange:
    """``connect`` makes a way to an offer's engine; ``permits`` says why an offer's host must not be asked, or None."""

    def __init__(
        self,
        mover: BlockMover,
        clock: Clock,
        book: LeaseBook,
        address: Address,
        connect: Callable[[Offer], KvSource],
        *,
        permits: Callable[[Offer], str | None] = lambda offer: None,
        recompute: bool = True,
        counter: TierCounter | None = None,
        on_lend: Callable[[Lease], None] = lambda lease: None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self.recompute = recompute
        self._mover = mover
        self._clock = clock
        self._book = book
        self._address = address
        self._connect = connect
        self._permits = permits
        self._counter = counter or TierCounter(REMOTE)
        self._on_lend = on_lend
        self._on_close = on_close
        self._peers: OrderedDict[tuple[str, str, int], Peer] = OrderedDict()
        self._held: dict[str, Offer] = {}
        self._live: dict[int, str] = {}
        self._cancelled: set[int] = set()
        self._tickets = 0
        self._ended: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self._news = threading.Event()
        self._device = threading.Lock()
        self._leaving = threading.Event()
        self._lock = threading.Lock()
        self._heart = threading.Thread(target=self._beat, name="kv-heartbeat", daemon=True)
        self._heart.start()

    @property
    def busy(self) -> bool:
        return bool(self._live) or len(self._book) > 0

    def usable(self, offer: Offer) -> str | None:
        if offer.layout != self._mover.layout:
            return f"its KV layout {offer.layout!r} is not {self._mover.layout!r} as here"
        if offer.mode != self._address.mode:
            return f"its transfer mode {offer.mode!r} is not {self._address.mode!r} as here"
        return self._permits(offer)

    def hold(self, offer: Offer) -> None:
        with self._lock:
            self._held[offer.lease] = offer

    def drop(self, offer: Offer) -> None:
        with self._lock:
            held = self._held.pop(offer.lease, None)
        if held is not None:
            self._peer(offer).release(offer)

    def pull(self, offer: Offer, digest: bytes, parts: Sequence[Part]) -> int:
        self._tickets += 1
        ticket, peer = self._tickets, self._peer(offer)
        self._live[ticket] = offer.lease
        self._counter.hit(len(parts))
        if not peer.fetch(lambda: self._pull(ticket, peer, offer, digest, tuple(parts))):
            self._end(ticket, Reason.UNREACHABLE)
        return ticket

    def cancel(self, ticket: int) -> None:
        if ticket in self._live:
            self._cancelled.add(ticket)

    def poll(self) -> Pulled:
        if self._ended.empty():
            return NOTHING_PULLED
        arrived: list[int] = []
        failed: list[tuple[int, str]] = []
        while not self._ended.empty():
            ticket, reason = self._ended.get()
            del self._live[ticket]
            self._cancelled.discard(ticket)
            if reason:
                failed.append((ticket, reason))
            else:
                arrived.append(ticket)
        return Pulled(tuple(arrived), tuple(failed))

    def lend(self, tables: tuple[tuple[int, ...], ...], num_tokens: int, digest: bytes) -> Offer:
        lease = self._book.lend(tables, num_tokens, digest)
        self._on_lend(lease)
        at, expires = self._address, time.time() + self._book.seconds
        return Offer(
            at.engine, lease.id, at.host, at.port, self._mover.layout, num_tokens, tables, expires=expires, mode=at.mode
        )

    def returned(self) -> Sequence[str]:
        if not len(self._book):
            return ()
        ended = self._book.returned()
        for lease in ended:
            if not lease.over:
                self._counter.failed("expired", sum(map(len, lease.tables)))
        return [lease.id for lease in ended]

    def wait(self, seconds: float) -> None:
        if self._ended.empty():
            self._news.wait(seconds)
        self._news.clear()

    def counts(self) -> TierCounts:
        return self._counter.snapshot()

    def close(self) -> None:
        if self._leaving.is_set():
            return
        for offer in tuple(self._held.values()):
            self.drop(offer)
        self._leaving.set()
        with self._lock:
            peers = tuple(self._peers.values())
        for peer in peers:
            peer.end()
        until = time.monotonic() + _CLOSE_PATIENCE  # for all together: peers that are gone answer nobody
        for peer in peers:
            peer.close(max(0.0, until - time.monotonic()))
        self._on_close()

    def _peer(self, offer: Offer) -> Peer:
        key = (offer.engine, offer.host, offer.port)
        with self._lock:
            peer = self._peers.pop(key, None) or Peer(offer.engine, lambda: self._connect(offer))
            self._peers[key] = peer
            oldest = self._peers.popitem(last=False)[1] if len(self._peers) > MOST_PEERS else None
        if oldest is not None:
            threading.Thread(target=oldest.close, args=(_CLOSE_PATIENCE,), daemon=True).start()
        return peer

    def _pull(self, ticket: int, peer: Peer, offer: Offer, digest: bytes, parts: tuple[Part, ...]) -> None:
        """Fetch, verify and write, ``CHUNK`` blocks at a time; every end is reported once."""
        reason = "failed"
        try:
            for at in range(0, len(parts), CHUNK):
                self._pull_some(ticket, peer, offer, digest, parts[at : at + CHUNK])
            reason = ""
        except HandOverError as error:
            reason = error.reason.value
            self._counter.failed(reason, len(parts))
            if error.reason is not Reason.CANCELLED:
                logger.warning("KV blocks did not come from engine %s: %s", offer.engine, error)
        finally:
            self._end(ticket, reason)

    def _pull_some(self, ticket: int, peer: Peer, offer: Offer, digest: bytes, parts: Sequence[Part]) -> None:
        if ticket in self._cancelled or self._leaving.is_set():
            raise HandOverError(Reason.CANCELLED, "Nobody waits for these blocks any more.")
        start = self._clock.now()
        ask = Ask(offer, self._mover.layout, digest, tuple((part.group, part.index) for part in parts))
        pieces = peer.source.fetch(ask)
        if len(pieces) != len(parts):
            raise HandOverError(Reason.PROTOCOL, f"{len(pieces)} of {len(parts)} blocks came.")
        if any(checksum(piece.view) != piece.checksum for piece in pieces):
            raise HandOverError(Reason.CORRUPT, "A block's checksum is wrong.")
        with self._device:
            self._mover.write([part.slot for part in parts], [piece.view for piece in pieces])
        size = sum(len(piece.view) for piece in pieces)
        self._counter.loaded(len(parts), size, self._clock.now() - start)

    def _end(self, ticket: int, reason: str) -> None:
        self._ended.put((ticket, reason))
        self._news.set()

    def _beat(self) -> None:
        while not self._leaving.wait(self._book.seconds / _BEATS):
            with self._lock:
                held = tuple(self._held.values())
            for key in {(offer.engine, offer.host, offer.port) for offer in held}:
                mine = tuple(offer for offer in held if (offer.engine, offer.host, offer.port) == key)
                self._peer(mine[0]).renew(mine)
