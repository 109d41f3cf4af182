"""Hand-overs by way of a pool that both engines reach: the prefill side writes its blocks there and is done with them.

A block's key is lease, prompt digest, group and index: whoever asks for another prompt finds nothing. Lent blocks are
free again as soon as they are written. The taker removes what it took; what nobody takes is removed by the lender after
the longest time that a lease may last, or evicted by the pool.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from energyopt.core.clock import Clock

from ..kv.block_store import BlockStore, Got, Put, StoreDownError
from ..kv.checksum import checksum
from ..kv.lane import Lane
from ..kv.ports import BlockMover
from ..request import NO_BLOCK
from .errors import HandOverError, Reason
from .leases import LONGEST_LEASE, Lease, LeaseBook
from .lender import Lender
from .params import Offer
from .ports import CHUNK, Ask, Piece
from .region import cut

logger = logging.getLogger(__name__)

PATIENCE = 5.0
"""Seconds that a fetch waits for blocks that are still being written."""

_LOOK_AGAIN = 0.01
_CLOSE_PATIENCE = 5.0


class Shelf(BlockStore, Protocol):
    """A block store from which blocks can be taken out again."""

    def discard(self, prefix: bytes) -> None:
        """Forget every block whose key begins so. Raises StoreDownError."""
        ...


class PooledLending:
    """Writes the blocks of each lease to the pool, on a thread of its own."""

    def __init__(self, shelf: Shelf, lender: Lender, mover: BlockMover, clock: Clock) -> None:
        self._shelf = shelf
        self._lender = lender
        self._book: LeaseBook = lender.book
        self._clock = clock
        self._views = cut(mover.allocate(CHUNK * mover.block_bytes), mover.block_bytes)
        self._written: deque[tuple[float, str]] = deque()
        self._lane = Lane("kv-lend-pool")

    def push(self, lease: Lease) -> None:
        """Write a lease's blocks some time soon; then, or if that fails, the lease is over."""

        def job() -> None:
            try:
                self._push(lease)
            except (StoreDownError, HandOverError) as error:
                logger.warning("KV blocks of a prompt did not reach the pool: %s", error)
            finally:
                self._book.release(lease.id)

        if not self._lane.submit(job):
            self._book.release(lease.id)

    def close(self) -> None:
        """Write what waits, then end."""
        self._lane.close(_CLOSE_PATIENCE)
        self._shelf.close()

    def _push(self, lease: Lease) -> None:
        blocks = [(g, i) for g, table in enumerate(lease.tables) for i, slot in enumerate(table) if slot != NO_BLOCK]
        for at in range(0, len(blocks), CHUNK):
            some = blocks[at : at + CHUNK]
            views = self._views[: len(some)]
            sums = self._lender.read(lease.id, self._lender.layout, lease.digest, some, views)
            ends = self._shelf.put([_key(lease.id, lease.digest, *block) for block in some], views, sums)
            if Put.FULL in ends:
                raise StoreDownError("the pool is full")
        self._written.append((self._clock.now(), lease.id))
        while self._written and self._clock.now() - self._written[0][0] > LONGEST_LEASE:
            self._shelf.discard(bytes.fromhex(self._written.popleft()[1]))


class PooledSource:
    """Reads what another engine wrote to the pool. Satisfies ``KvSource``."""

    def __init__(
        self,
        shelf: Shelf,
        block_bytes: int,
        clock: Clock,
        *,
        allocate: Callable[[int], memoryview],
        patience: float = PATIENCE,
    ) -> None:
        self._shelf = shelf
        self._clock = clock
        self._patience = patience
        self._views = cut(allocate(CHUNK * block_bytes), block_bytes)

    def fetch(self, ask: Ask) -> Sequence[Piece]:
        keys = [_key(ask.offer.lease, ask.digest, *block) for block in ask.blocks]
        views = self._views[: len(keys)]
        try:
            self._wait_for(keys)
            ends = self._shelf.get(keys, views)
        except StoreDownError as error:
            raise HandOverError(Reason.UNREACHABLE, f"The pool does not answer: {error}") from error
        if any(end is not Got.WHOLE for end in ends):
            reason = Reason.CORRUPT if Got.CORRUPT in ends else Reason.GONE
            raise HandOverError(reason, "A block in the pool is not as it was written, or gone.")
        return [Piece(view, checksum(view)) for view in views]

    def renew(self, offer: Offer) -> None:
        """The blocks are in the pool: nobody keeps them for us."""

    def release(self, offer: Offer) -> None:
        try:
            self._shelf.discard(bytes.fromhex(offer.lease))
        except StoreDownError as error:
            raise HandOverError(Reason.UNREACHABLE, f"The pool does not answer: {error}") from error

    def close(self) -> None:
        """The pool is the engine's; it closes it."""

    def _wait_for(self, keys: Sequence[bytes]) -> None:
        deadline = self._clock.now() + self._patience
        while not all(self._shelf.contains(keys)):
            if self._clock.now() > deadline:
                raise HandOverError(Reason.GONE, "These KV blocks are not in the pool.")
            time.sleep(_LOOK_AGAIN)


def _key(lease: str, digest: bytes, group: int, index: int) -> bytes:
    return bytes.fromhex(lease) + digest + bytes((group,)) + index.to_bytes(4, "little")
