"""What happens to cached blocks, for whoever routes requests by them: stored, removed, cleared, by tier.

Whoever changes a tier notes it in an ``EventLog``; without one nothing is noted. One reader turns the notes into
numbered batches. It knows names of blocks, never tokens.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import groupby, takewhile
from typing import Protocol

KEPT_NAMES = 1 << 18
"""Names in the batches that are kept for readers who come back: at 16 tokens each, four million tokens."""
MAX_NOTES = 1 << 20
"""Notes that may wait for the reader; beyond that they are dropped, and everything is listed anew."""


class Kind(Enum):
    """What happened."""

    STORED = "stored"
    REMOVED = "removed"
    CLEARED = "cleared"


@dataclass(frozen=True, slots=True)
class KvEvent:
    """Blocks of one tier and one group of layers to which the same thing happened, in order; ``cleared`` names none."""

    kind: Kind
    tier: str
    group: int
    names: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class KvBatch:
    """Events since the batch numbered one less."""

    number: int
    events: tuple[KvEvent, ...]

    @property
    def size(self) -> int:
        return sum(1 + len(event.names) for event in self.events)


class EventLog:
    """Notes of any thread, read by one.

    ``epoch`` names this log: numbers of another one mean nothing here. ``on_news`` is called, on the noting thread,
    by the first note after a ``collect``. Notes about one tier must come in the order of what they tell.
    """

    def __init__(self, *, kept_names: int = KEPT_NAMES, max_notes: int = MAX_NOTES) -> None:
        self.epoch = secrets.token_hex(8)
        self.on_news: Callable[[], None] = lambda: None
        self.lost = False
        self.newest = 0
        self._kept_names, self._max_notes = kept_names, max_notes
        self._notes: deque[tuple[Kind, str, int, bytes]] = deque()
        self._told = False
        self._batches: deque[KvBatch] = deque()
        self._size = 0
        self._held: dict[tuple[str, int], dict[bytes, None]] = {}

    # Any thread.

    def stored(self, tier: str, group: int, name: bytes) -> None:
        """A block can be found from now on."""
        self._note((Kind.STORED, tier, group, name))

    def removed(self, tier: str, group: int, name: bytes) -> None:
        """A block cannot be found any more."""
        self._note((Kind.REMOVED, tier, group, name))

    def cleared(self, tier: str) -> None:
        """A tier forgot everything."""
        self._note((Kind.CLEARED, tier, 0, b""))

    def _note(self, note: tuple[Kind, str, int, bytes]) -> None:
        if len(self._notes) >= self._max_notes:
            self.lost = True
            return
        self._notes.append(note)
        if not self._told:
            self._told = True
            self.on_news()

    # The reader's thread.

    def collect(self) -> None:
        """Make a batch of what was noted."""
        self._told = False  # before the notes are taken: one that comes meanwhile tells again
        count = len(self._notes)
        notes = [self._notes.popleft() for _ in range(count)]
        if not notes:
            return
        events = tuple(_events(notes))
        for event in events:
            self._apply(event)
        self.newest += 1
        self._batches.append(KvBatch(self.newest, events))
        self._size += self._batches[-1].size
        while self._size > self._kept_names and len(self._batches) > 1:
            self._size -= self._batches.popleft().size

    def after(self, number: int) -> list[KvBatch] | None:
        """Batches that follow the one with this number; None if some of them are not kept, or it is not of this log."""
        oldest = self._batches[0].number if self._batches else self.newest + 1
        if not oldest - 1 <= number <= self.newest:
            return None
        later = list(takewhile(lambda batch: batch.number > number, reversed(self._batches)))
        return later[::-1]

    def listing(self) -> KvBatch:
        """Everything that is held as of the newest batch, as if it were that batch."""
        stored = (KvEvent(Kind.STORED, *place, tuple(names)) for place, names in self._held.items() if names)
        tiers = dict.fromkeys(tier for tier, _ in self._held)
        return KvBatch(self.newest, (*(KvEvent(Kind.CLEARED, tier, 0) for tier in tiers), *stored))

    def _apply(self, event: KvEvent) -> None:
        if event.kind is Kind.CLEARED:
            for place, names in self._held.items():
                if place[0] == event.tier:
                    names.clear()
            self._held.setdefault((event.tier, 0), {})
            return
        held = self._held.setdefault((event.tier, event.group), {})
        if event.kind is Kind.STORED:
            held.update(dict.fromkeys(event.names))
        else:
            for name in event.names:
                held.pop(name, None)


def _events(notes: Iterable[tuple[Kind, str, int, bytes]]) -> Iterator[KvEvent]:
    """Runs of notes of one kind, tier and group as one event each."""
    for (kind, tier, group), run in groupby(notes, key=lambda note: note[:3]):
        names = tuple(name for *_, name in run)
        yield KvEvent(kind, tier, group, () if kind is Kind.CLEARED else names)


class Watched(Protocol):
    """Something that notes what becomes of its blocks."""

    def watch(self, log: EventLog | None) -> None: ...


class WatchedCache(Protocol):
    """A coordinator's parts that note events."""

    @property
    def pool(self) -> Watched: ...

    @property
    def tiers(self) -> Watched | None: ...


def watch(cache: WatchedCache, log: EventLog | None) -> int:
    """Let every tier note its events, from what it holds now; on the step loop's thread. Returns 0, to be an errand."""
    cache.pool.watch(log)
    if cache.tiers is not None:
        cache.tiers.watch(log)
    return 0
