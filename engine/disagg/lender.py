"""Answers a peer's questions about lent blocks, whatever way they came. It never writes to the pool."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from energyopt.core.clock import Clock

from ..kv.checksum import checksum
from ..kv.ports import BlockMover
from ..kv.tier_counter import TierCounter
from ..request import NO_BLOCK
from .errors import HandOverError, Reason
from .leases import LeaseBook
from .ports import CHUNK


class Lender:
    """Reads blocks of live leases. Any thread; ``counter`` counts what was given away."""

    def __init__(self, book: LeaseBook, mover: BlockMover, counter: TierCounter, clock: Clock) -> None:
        self.book = book
        self.layout = mover.layout
        self.block_bytes = mover.block_bytes
        self._mover = mover
        self._counter = counter
        self._clock = clock
        self._lock = threading.Lock()

    def read(
        self, lease: str, layout: str, digest: bytes, blocks: Sequence[tuple[int, int]], into: Sequence[memoryview]
    ) -> list[int]:
        """Copy up to ``CHUNK`` blocks, (group, index) each, into buffers; their checksums.

        Raises HandOverError: GONE, LAYOUT, PROMPT, or PROTOCOL for blocks that are not part of the lease.
        """
        if layout != self.layout:
            raise HandOverError(Reason.LAYOUT, f"The peer's KV layout {layout!r} is not {self.layout!r} as here.")
        if not 1 <= len(blocks) <= CHUNK:
            raise HandOverError(Reason.PROTOCOL, f"{len(blocks)} blocks were asked for: allowed are 1 to {CHUNK}.")
        start = self._clock.now()
        with self.book.reading(lease) as held:
            if held.digest != digest:
                raise HandOverError(Reason.PROMPT, "These KV blocks were computed for another prompt.")
            slots = [_slot(held.tables, group, index) for group, index in blocks]
            with self._lock:  # a mover copies on one stream
                self._mover.read(slots, into)
            sums = [checksum(view) for view in into]
        self._counter.stored(len(blocks), sum(map(len, into)), self._clock.now() - start)
        return sums


def _slot(tables: tuple[tuple[int, ...], ...], group: int, index: int) -> int:
    if not (0 <= group < len(tables) and 0 <= index < len(tables[group])) or tables[group][index] == NO_BLOCK:
        raise HandOverError(Reason.PROTOCOL, f"Block {index} of group {group} is not part of this lease.")
    return tables[group][index]
