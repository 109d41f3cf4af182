"""The way of blocks between two engines of one process: no wire. The twin that every other way is held equal to."""

from __future__ import annotations

from collections.abc import Sequence

from .errors import HandOverError, Reason
from .lender import Lender
from .params import Offer
from .ports import CHUNK, Ask, Piece


class LocalSource:
    """Reads straight from the lender. Satisfies ``KvSource``."""

    def __init__(self, lender: Lender) -> None:
        self._lender = lender
        memory = memoryview(bytearray(CHUNK * lender.block_bytes))
        self._buffers = [memory[at : at + lender.block_bytes] for at in range(0, len(memory), lender.block_bytes)]
        self._closed = False

    def fetch(self, ask: Ask) -> Sequence[Piece]:
        self._check()
        views = self._buffers[: len(ask.blocks)]
        sums = self._lender.read(ask.offer.lease, ask.layout, ask.digest, ask.blocks, views)
        return [Piece(view, value) for view, value in zip(views, sums, strict=True)]

    def renew(self, offer: Offer) -> None:
        self._check()
        self._lender.book.renew(offer.lease)

    def release(self, offer: Offer) -> None:
        self._check()
        self._lender.book.release(offer.lease)

    def close(self) -> None:
        self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise HandOverError(Reason.UNREACHABLE, "The engine that lent these KV blocks is closed.")
