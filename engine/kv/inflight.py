"""Copies between the device pool and the tiers below that have begun and not ended.

A block that takes part in a copy has a reference of the copy's own: whatever happens to the request, nobody is handed
the block before the copy ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..request import Request
from .blocks import BlockPool
from .hashing import DIGEST_BYTES
from .ports import NOTHING, LowerTiers, Transfer


class Incoming(NamedTuple):
    """A block that a load fills: ``hash`` of ``group``."""

    block: int
    hash: bytes
    group: int


@dataclass(slots=True)
class _Load:
    request: Request | None
    blocks: tuple[Incoming, ...]
    names: frozenset[tuple[bytes, int]]
    findable: bool = True


@dataclass(frozen=True, slots=True)
class Landed:
    """Requests whose load ended since the last look: ``loaded`` may run, ``failed`` must compute, ``lost`` must end."""

    loaded: tuple[Request, ...] = ()
    failed: tuple[Request, ...] = ()
    lost: tuple[Request, ...] = ()

    def beside(self, other: Landed) -> Landed:
        """Both together."""
        if other is _NONE_LANDED:
            return self
        return Landed(self.loaded + other.loaded, self.failed + other.failed, self.lost + other.lost)


_NONE_LANDED = Landed()


def tier_key(block_hash: bytes, group: int) -> bytes:
    """A block's name below the device: see ``ports``."""
    return block_hash + bytes((group,)) if group else block_hash


def named_by(key: bytes) -> tuple[int, bytes]:
    """Group and block hash of a ``tier_key``."""
    return (key[DIGEST_BYTES] if len(key) > DIGEST_BYTES else 0), key[:DIGEST_BYTES]


class InFlight:
    """Loads and stores under way over one pool. ``failures`` counts loads that did not arrive whole."""

    def __init__(self, pool: BlockPool, tiers: LowerTiers) -> None:
        self.failures = 0
        self._pool = pool
        self._tiers = tiers
        self._loads: dict[int, _Load] = {}
        self._stores: dict[int, list[int]] = {}

    @property
    def busy(self) -> bool:
        """Whether some block still belongs to a copy."""
        return bool(self._loads or self._stores)

    def expects(self, block_hash: bytes, group: int) -> bool:
        """Whether a load under way brings this block."""
        return any((block_hash, group) in load.names for load in self._loads.values())

    def load(self, request: Request, blocks: Sequence[Incoming]) -> bool:
        """Begin to fill blocks that ``request`` holds; False if something vanished and nothing began."""
        ticket = self._tiers.load([Transfer(tier_key(name, group), block) for block, name, group in blocks])
        if ticket is None:
            return False
        self._pool.touch([block for block, _, _ in blocks])
        self._loads[ticket] = _Load(request, tuple(blocks), frozenset((name, group) for _, name, group in blocks))
        return True

    def store(self, transfers: Sequence[Transfer]) -> None:
        """Offer full blocks; those that are taken stay untouched until they are copied."""
        ticket = self._tiers.store(transfers)
        if ticket is not None:
            blocks = [transfer.slot for transfer in transfers]
            self._pool.touch(blocks)
            self._stores[ticket] = blocks

    def abandon(self, request: Request) -> None:
        """Nobody waits for this request's load any more; its blocks stay with the copy until that ends."""
        for load in self._loads.values():
            if load.request is request:
                load.request = None

    def forget(self) -> None:
        """What is under way may be used by its own request, but by nobody else."""
        for load in self._loads.values():
            load.findable = False

    def poll(self) -> Landed:
        """Take note of every copy that ended, and let loaded blocks be found."""
        events = self._tiers.poll()
        if events is NOTHING:
            return _NONE_LANDED
        for ticket in events.stored:
            self._pool.free(reversed(self._stores.pop(ticket)))
        loaded = [self._end(ticket, arrived=True) for ticket in events.loaded]
        failed = [self._end(ticket, arrived=False) for ticket in events.failed]
        return Landed(
            tuple(request for request in loaded if request is not None),
            tuple(request for request in failed if request is not None),
        )

    def references(self) -> Counter[int]:
        """Blocks that copies hold, with multiplicity."""
        held: Counter[int] = Counter()
        for load in self._loads.values():
            held.update(block.block for block in load.blocks)
        for blocks in self._stores.values():
            held.update(blocks)
        return held

    def _end(self, ticket: int, *, arrived: bool) -> Request | None:
        """Release a load's blocks, last one first; returns the request that waits for it."""
        load = self._loads.pop(ticket)
        self.failures += not arrived
        if arrived and load.findable:
            register = self._pool.register
            for block, name, group in load.blocks:
                register(block, name, group)
        self._pool.free([block for block, _, _ in reversed(load.blocks)])
        return load.request
