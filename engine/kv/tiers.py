"""Every tier below the device pool as one: loads from the first tier that has a block, saves to all of them.

It knows keys, slots and buffers, never tokens. The step loop's thread calls it and never waits: copies to and from
the device run on one thread, each store has threads of its own. A block read from a store is kept in the host tier
on its way.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby

from energyopt.core.clock import Clock
from energyopt.core.errors import ConfigError

from .buffers import Buffer, Staging
from .chooser import Chooser
from .copier import CHUNK, Copier
from .events import EventLog
from .host import HOST, HostBlock, HostTier
from .ports import NOTHING, BlockMover, Found, LoadRecord, TierCounts, TierEvents, Transfer
from .sightings import Sightings
from .store_tier import StoreTier
from .ticket import Ticket

LOAD_PATIENCE = 10.0
"""Seconds after which a load from a store has failed, whatever becomes of it."""

ASKED_AHEAD = 2048
"""Keys of a prefix that one step asks stores about: a prompt of a million tokens shall not hold others up."""

CLOSE_PATIENCE = 10.0
"""Seconds that ``close`` gives each store to save what waits."""


class Tiers:
    """Satisfies ``ports.LowerTiers``.

    ``stores`` stand in the order in which they are asked, after the host tier. ``staging`` are buffers for blocks
    that have no slot in the host tier. ``on_load`` hears of each ended load, on the step loop's thread.
    """

    def __init__(
        self,
        mover: BlockMover,
        clock: Clock,
        *,
        host: HostTier | None,
        stores: Sequence[StoreTier],
        staging: Staging,
        sightings: Sightings,
        chooser: Chooser,
        on_load: Callable[[LoadRecord], None],
    ) -> None:
        self._clock = clock
        self._host = host
        self._news = threading.Event()
        self._stores = tuple(stores)
        for store in self._stores:
            store.on_news = self._news.set
        self._staging = staging
        self._sightings = sightings
        self._chooser = chooser
        self._on_load = on_load
        self._copier = Copier(mover, host, staging, clock)
        self._block_bytes = mover.block_bytes
        self._tickets = 0
        self._running = _Gauge()
        self._loads: dict[int, tuple[Ticket, float, Counter[str]]] = {}
        self._ended: queue.SimpleQueue[tuple[int, bool]] = queue.SimpleQueue()
        self._closed = False

    @property
    def names(self) -> tuple[str, ...]:
        return (*((HOST,) if self._host else ()), *(store.name for store in self._stores))

    @property
    def busy(self) -> bool:
        """Whether a copy, save or reset has not ended. Any thread; for those who measure, or wait to leave."""
        return self._running.total() > 0 or any(store.busy for store in self._stores)

    def seen(self, keys: Sequence[bytes]) -> None:
        self._sightings.seen(keys)
        if self._host is not None:
            self._host.touch(keys)

    def find(self, keys: Sequence[bytes], *, weigh: bool) -> Found:
        tiers: list[str] = []
        for at, key in enumerate(keys):
            if self._host is not None and self._host.has(key):
                tiers.append(HOST)
                continue
            tier = self._first_with(key)
            if tier is None:
                self._ask(keys[at : at + ASKED_AHEAD])
                return Found(tuple(tiers), later=True)
            if not tier:
                break
            tiers.append(tier)
        return Found(tuple(tiers[: self._chooser.worth_loading(tiers)] if weigh else tiers))

    def locate(self, keys: Sequence[bytes]) -> Found:
        tiers = [self._first_with(key) for key in keys]
        unknown = [key for key, tier in zip(keys, tiers, strict=True) if tier is None]
        self._ask(unknown)
        return Found(tuple(tier or "" for tier in tiers), later=bool(unknown))

    def worth(self, tiers: Sequence[str], tokens: int) -> bool:
        return self._chooser.worth(tiers, tokens)

    def load(self, transfers: Sequence[Transfer]) -> int | None:
        tiers: list[str] = []
        held: list[HostBlock] = []
        for key, _ in transfers:
            tier = self._first_with(key)
            block = self._take(key) if tier == HOST else None
            if not tier or (tier == HOST and block is None):
                for one in held:
                    one.release()
                return None
            tiers.append(tier)
            if block is not None:
                held.append(block)
        counts, parts = Counter(tiers), _parts(tiers, transfers)
        ticket = self._ticket(len(parts))
        self._loads[ticket.number] = (ticket, self._clock.now(), counts)
        for tier, run in groupby(parts, key=lambda part: part[0]):
            some = [part for _, part in run]
            if tier == HOST:
                count = sum(map(len, some))
                self._copier.write_held(ticket, some, held[:count])
                del held[:count]
            else:
                self._copier.fetch_and_write(ticket, some, self._store(tier))
        for tier, count in counts.items():
            (self._host if tier == HOST and self._host else self._store(tier)).counter.hit(count)
        return ticket.number

    def store(self, transfers: Sequence[Transfer]) -> int | None:
        wanted: list[tuple[Transfer, Buffer, tuple[StoreTier, ...]]] = []
        for transfer in transfers:
            stores = tuple(store for store in self._stores if not store.expects(transfer.key))
            if not self._sightings.admits(transfer.key) or self._saved_from_host(transfer.key, stores):
                continue
            buffer = self._buffer_for(transfer.key, stores)
            if buffer is not None:
                wanted.append((transfer, buffer, stores))
        if not wanted:
            return None
        parts = [wanted[at : at + CHUNK] for at in range(0, len(wanted), CHUNK)]
        ticket = self._ticket(len(parts))
        for part in parts:
            self._copier.read(ticket, part)
        return ticket.number

    def poll(self) -> TierEvents:
        if self._ended.empty() and not self._loads:
            return NOTHING
        now = self._clock.now()
        for ticket, start, tiers in tuple(self._loads.values()):
            if now - start > LOAD_PATIENCE and ticket.live:
                ticket.give_up()
                for store in self._stores:
                    if tiers[store.name]:
                        store.given_up()
        loaded: list[int] = []
        failed: list[int] = []
        stored: list[int] = []
        while not self._ended.empty():
            number, good = self._ended.get()
            if number in self._loads:
                (loaded if good else failed).append(number)
                self._report(number, good)
            else:
                stored.append(number)
        return TierEvents(tuple(loaded), tuple(failed), tuple(stored))

    def wait(self, seconds: float) -> None:
        if self._ended.empty():
            self._news.wait(seconds)
        self._news.clear()

    def watch(self, log: EventLog | None) -> None:
        """The host tier's blocks only: what stores keep, others change as well."""
        if self._host is not None:
            self._host.watch(log)

    def reset(self, tier: str | None = None) -> int:
        """Raises ConfigError for a tier that is not here."""
        if tier is not None and tier not in self.names:
            raise ConfigError(f"There is no KV tier {tier!r}: here are {', '.join(self.names)}.")
        count = 0
        if self._host is not None and tier in (None, HOST):
            count += self._host.reset()
        return count + sum(store.reset() for store in self._stores if tier in (None, store.name))

    def counts(self) -> tuple[TierCounts, ...]:
        host = (self._host.counter.snapshot(),) if self._host else ()
        return (*host, *(store.counts() for store in self._stores))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._copier.close(CLOSE_PATIENCE)
        for store in self._stores:
            store.close(CLOSE_PATIENCE)

    def _first_with(self, key: bytes) -> str | None:
        """The first tier that has the block, "" if none has; None if one before that has not answered yet."""
        if self._host is not None and self._host.has(key):
            return HOST
        for store in self._stores:
            known = store.knows(key)
            if known is None:
                return None
            if known:
                return store.name
        return ""

    def _ask(self, keys: Sequence[bytes]) -> None:
        if keys:
            for store in self._stores:
                store.ask(keys)

    def _take(self, key: bytes) -> HostBlock | None:
        return self._host.take(key) if self._host else None

    def _saved_from_host(self, key: bytes, stores: Sequence[StoreTier]) -> bool:
        """Whether the host tier has the block: what stores lack they get from there, not from the device."""
        block = self._take(key)
        if block is None:
            return False
        for store in stores:
            store.save(key, block)
        block.release()
        return True

    def _buffer_for(self, key: bytes, stores: Sequence[StoreTier]) -> Buffer | None:
        """Where to put a block that some tier lacks; None if none does, or if there is no room for it now."""
        if self._host is not None:
            if self._host.expects(key):
                return None
            if (slot := self._host.reserve(key)) is not None:
                return slot
        return self._staging.take() if stores else None

    def _store(self, name: str) -> StoreTier:
        return next(store for store in self._stores if store.name == name)

    def _ticket(self, parts: int) -> Ticket:
        self._tickets += 1
        self._running.add(1)
        return Ticket(self._tickets, parts, self._end)

    def _end(self, ticket: Ticket, good: bool) -> None:
        """Called once for each ticket, on any thread."""
        self._running.add(-1)
        self._ended.put((ticket.number, good))
        self._news.set()

    def _report(self, number: int, good: bool) -> None:
        _, start, tiers = self._loads.pop(number)
        size = tiers.total() * self._block_bytes
        self._on_load(LoadRecord(start, self._clock.now(), dict(tiers), size, good))


class _Gauge:
    """A number that several threads change."""

    def __init__(self) -> None:
        self._number = 0
        self._lock = threading.Lock()

    def add(self, amount: int) -> None:
        with self._lock:
            self._number += amount

    def total(self) -> int:
        return self._number


def _parts(tiers: Sequence[str], transfers: Sequence[Transfer]) -> list[tuple[str, list[Transfer]]]:
    """Runs of one tier, at most ``CHUNK`` long."""
    parts: list[tuple[str, list[Transfer]]] = []
    start = 0
    for tier, run in groupby(tiers):
        end = start + sum(1 for _ in run)
        parts += [(tier, list(transfers[at : min(end, at + CHUNK)])) for at in range(start, end, CHUNK)]
        start = end
    return parts
