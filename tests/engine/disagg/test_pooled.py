"""Hand-overs by way of a pool: found once written, never for another prompt, removed once taken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.disagg.errors import HandOverError, Reason
from engine.disagg.params import Offer
from engine.disagg.pooled import PooledLending, PooledSource
from engine.disagg.ports import CHUNK
from engine.kv.block_store import MemoryStore

DIGEST = bytes(range(16))
Make = Callable[..., Any]


class Shelved:
    """A lending side over a pool in memory."""

    def __init__(self, side: Any) -> None:
        self.side = side
        self.store = MemoryStore("bytes-1")
        self.lending = PooledLending(self.store, side.lender, side.mover, side.clock)
        size = side.mover.block_bytes
        self.source = PooledSource(self.store, size, side.clock, allocate=side.mover.allocate, patience=0.3)

    def lend(self, slots: Any = range(40)) -> Offer:
        lease = self.side.book.lend((tuple(slots),), 160, DIGEST)
        self.lending.push(lease)
        return Offer("e" * 32, lease.id, "pool", 0, "bytes-1", 160, lease.tables, mode="store")

    def until_over(self) -> None:
        deadline = time.monotonic() + 5
        while not self.side.book.returned():
            assert time.monotonic() < deadline


def fails(reason: Reason) -> Any:
    return pytest.raises(HandOverError, check=lambda error: error.reason is reason)


def test_blocks_go_through_the_pool_and_are_free_once_written(lending: Make) -> None:
    shelved = Shelved(lending("local"))
    offer = shelved.lend()
    pieces = shelved.source.fetch(shelved.side.ask(offer, *((0, index) for index in range(CHUNK))))
    assert [piece.view[0] for piece in pieces] == list(range(CHUNK))
    shelved.until_over()
    assert len(shelved.side.book) == 0
    assert len(shelved.store._blocks) == 40
    shelved.source.release(offer)
    shelved.source.release(offer)
    assert not shelved.store._blocks
    with fails(Reason.GONE):
        shelved.source.fetch(shelved.side.ask(offer, (0, 0)))


def test_a_fetch_waits_for_what_is_being_written(lending: Make) -> None:
    shelved = Shelved(lending("local"))
    shelved.side.mover.gate.clear()
    offer = shelved.lend()
    threading.Timer(0.1, shelved.side.mover.gate.set).start()
    assert shelved.source.fetch(shelved.side.ask(offer, (0, 7)))[0].view[0] == 7


def test_another_prompt_or_lease_finds_nothing(lending: Make) -> None:
    shelved = Shelved(lending("local"))
    offer = shelved.lend()
    for ask in (
        shelved.side.ask(offer, (0, 0), digest=bytes(16)),
        shelved.side.ask(replace(offer, lease="0" * 32), (0, 0)),
        shelved.side.ask(offer, (0, 40)),
    ):
        with fails(Reason.GONE):
            shelved.source.fetch(ask)


def test_a_pool_that_is_down_or_full_ends_the_lease_and_the_fetch(lending: Make) -> None:
    shelved = Shelved(lending("local"))
    shelved.store.down = True
    offer = shelved.lend()
    shelved.until_over()
    for call in (lambda: shelved.source.fetch(shelved.side.ask(offer, (0, 0))), lambda: shelved.source.release(offer)):
        with fails(Reason.UNREACHABLE):
            call()
    shelved.store.down = False
    shelved.store.capacity = 3
    full = shelved.lend()
    shelved.until_over()
    with fails(Reason.GONE):
        shelved.source.fetch(shelved.side.ask(full, (0, 39)))


def test_a_block_that_changed_in_the_pool_is_not_used(lending: Make) -> None:
    shelved = Shelved(lending("local"))
    offer = shelved.lend((5,))
    shelved.until_over()
    ((_, key),) = shelved.store._blocks
    shelved.store.corrupt(key)
    with fails(Reason.CORRUPT):
        shelved.source.fetch(shelved.side.ask(offer, (0, 0)))
