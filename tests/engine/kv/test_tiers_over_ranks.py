"""A block of an engine of several ranks is in a tier when every rank's part of it is, and not before."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from threading import Event

import pytest

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import ParallelLayout
from engine.disagg.geometry import Geometry, ShardedMover, shards_of
from engine.kv.buffers import Staging
from engine.kv.chooser import LoadAlways
from engine.kv.host import HostTier
from engine.kv.ports import Transfer
from engine.kv.sightings import Sightings
from engine.kv.tiers import Tiers

WHOLE = Geometry(2, 2, 2, 4)
SLOTS = 4


class Rank:
    """One rank's part of the device pool; its copies wait at ``gate`` and raise while it has ``died``."""

    layout = "rank"

    def __init__(self, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self.device = [bytearray(block_bytes) for _ in range(SLOTS)]
        self.gate, self.died = Event(), False
        self.gate.set()

    def allocate(self, size: int) -> memoryview:
        return memoryview(bytearray(size))

    def read(self, slots: Sequence[int], into: Sequence[memoryview]) -> None:
        self._copy([self.device[slot] for slot in slots], into)

    def write(self, slots: Sequence[int], source: Sequence[memoryview]) -> None:
        self._copy(source, [memoryview(self.device[slot]) for slot in slots])

    def _copy(self, source: Sequence[bytearray | memoryview], into: Sequence[memoryview]) -> None:
        assert self.gate.wait(10)
        if self.died:
            raise ConnectionResetError("the rank is gone")
        for block, view in zip(source, into, strict=True):
            view[:] = block


class Rig:
    def __init__(self, layout: ParallelLayout) -> None:
        shards = shards_of(WHOLE, layout)
        self.ranks = [Rank(shard.bytes_of(WHOLE)) for shard in shards]
        mover, clock = ShardedMover("whole", WHOLE, shards, self.ranks), MonotonicClock()
        size = mover.block_bytes
        self.tiers = Tiers(
            mover,
            clock,
            host=HostTier(mover.allocate(8 * size), size),
            stores=(),
            staging=Staging(mover.allocate(4 * size), size),
            sightings=Sightings(1),
            chooser=LoadAlways(),
            on_load=lambda record: None,
        )

    def found(self, key: bytes) -> tuple[str, ...]:
        return self.tiers.find([key], weigh=True).tiers

    def ended(self, ticket: int | None) -> str:
        """What became of a copy."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            events = self.tiers.poll()
            for name in ("stored", "loaded", "failed"):
                if ticket in getattr(events, name):
                    return name
            self.tiers.wait(0.1)
        raise AssertionError("nothing ended")


@pytest.fixture(params=[ParallelLayout(tp=2), ParallelLayout(pp=2), ParallelLayout(tp=2, pp=2)], ids=str)
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    made = Rig(request.param)
    yield made
    for rank in made.ranks:
        rank.gate.set()
    made.tiers.close()


def test_a_block_is_found_when_the_last_rank_has_given_its_part(rig: Rig) -> None:
    rig.ranks[-1].gate.clear()
    ticket = rig.tiers.store([Transfer(b"a", 0)])
    assert rig.found(b"a") == ()
    assert rig.tiers.poll().stored == ()
    rig.ranks[-1].gate.set()
    assert rig.ended(ticket) == "stored"
    assert rig.found(b"a") == ("host",)


@pytest.mark.parametrize("lost", [0, -1])
def test_a_part_that_never_comes_leaves_nothing_to_find(rig: Rig, lost: int) -> None:
    rig.ranks[lost].died = True
    rig.ended(rig.tiers.store([Transfer(b"a", 0)]))
    assert rig.found(b"a") == ()
    rig.ranks[lost].died = False
    rig.ended(rig.tiers.store([Transfer(b"a", 0)]))
    assert rig.found(b"a") == ("host",), "it is stored anew once all ranks are there"


def test_a_load_is_over_when_the_last_rank_has_its_part_and_failed_if_one_has_not(rig: Rig) -> None:
    for number, rank in enumerate(rig.ranks):
        rank.device[0][:] = bytes([number + 1]) * rank.block_bytes
    rig.ended(rig.tiers.store([Transfer(b"a", 0)]))
    rig.ranks[-1].gate.clear()
    ticket = rig.tiers.load([Transfer(b"a", 2)])
    assert rig.tiers.poll().loaded == ()
    rig.ranks[-1].gate.set()
    assert rig.ended(ticket) == "loaded"
    assert all(rank.device[2] == rank.device[0] for rank in rig.ranks)
    rig.ranks[-1].died = True
    assert rig.ended(rig.tiers.load([Transfer(b"a", 3)])) == "failed"
