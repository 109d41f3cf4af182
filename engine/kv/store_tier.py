"""A block store as a tier: lookups, loads and saves on threads of their own, and peace for a store that is down.

The step loop asks ``knows`` and gets an answer at once, which may be "ask later". Failures of the store become
misses, a warning and a count, never an exception.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from energyopt.core.clock import Clock

from .answers import FRESH, Answers
from .block_store import BlockStore, Got, Put, StoreDownError
from .breaker import Breaker
from .buffers import Buffer
from .lane import Job, Lane
from .ports import TierCounts
from .tier_counter import TierCounter

logger = logging.getLogger(__name__)

PATIENCE = 0.25
"""Seconds that a request waits for a lookup before the store counts as not having it."""

_ASKED_AT_ONCE = 512
_SAVED_AT_ONCE = 16


class StoreTier:
    """``name`` as metrics and ``Found`` spell it. ``on_news`` is called from a thread whenever an answer came in.

    ``backlog`` bounds the blocks that wait to be saved: each holds a buffer. Beyond it saves are dropped.
    """

    def __init__(
        self,
        name: str,
        store: BlockStore,
        clock: Clock,
        *,
        backlog: int,
        patience: float = PATIENCE,
        fresh: float = FRESH,
        breaker: Breaker | None = None,
    ) -> None:
        self.name = name
        self.counter = TierCounter(name)
        self._store = store
        self._clock = clock
        self.on_news: Callable[[], None] = _nobody
        self._backlog = backlog
        self._answers = Answers(clock, patience=patience, fresh=fresh)
        self._breaker = breaker or Breaker(clock)
        self._full = Breaker(clock)
        self._waiting: deque[tuple[bytes, Buffer]] = deque()
        self._saving: set[bytes] = set()
        self._lock = threading.Lock()
        self._resets = 0
        self._lookups = Lane(f"kv-{name}-lookup")
        self._loads = Lane(f"kv-{name}-load")
        self._saves = Lane(f"kv-{name}-save")
        self._lookups.submit(lambda: self._look_up(()))  # connect before the first request waits for it

    @property
    def busy(self) -> bool:
        """Whether something waits to be saved or forgotten."""
        return bool(self._saving or self._resets)

    def knows(self, key: bytes) -> bool | None:
        """Whether the store has the block; None: not known yet. An overdue answer and a store that is down are no."""
        if self._breaker.open or self._resets:
            return False
        answer = self._answers.get(key)
        if answer is None and self._answers.overdue(key):
            self._answers.tell([key], [False])
            self._down("timeout", "it did not answer a lookup in time")
            return False
        return answer

    def ask(self, keys: Sequence[bytes]) -> None:
        """Begin to find out about those keys that nothing is known of."""
        if self._breaker.open or self._resets:
            return
        keys = self._answers.to_ask(keys)
        for at in range(0, len(keys), _ASKED_AT_ONCE):
            some = keys[at : at + _ASKED_AT_ONCE]
            self._lookups.submit(lambda some=some: self._look_up(some))  # type: ignore[misc]

    def expects(self, key: bytes) -> bool:
        """Whether the block is there or on its way, as far as is known: no second copy is wanted."""
        return key in self._saving or self._answers.get(key) is True

    def load(self, job: Job) -> bool:
        """Run a job that calls ``fetch`` on the thread for loads; False after ``close``."""
        return self._loads.submit(job)

    def fetch(self, keys: Sequence[bytes], into: Sequence[memoryview]) -> list[bool]:
        """Which blocks arrived whole. Blocks; for ``load``'s jobs."""
        start = self._clock.now()
        try:
            ends = list(self._store.get(keys, into))
        except StoreDownError as error:
            self._down("unavailable", str(error), len(keys))
            return [False] * len(keys)
        good = [end is Got.WHOLE for end in ends]
        self._up()
        self.counter.loaded(sum(good), sum(len(v) for v, ok in zip(into, good, strict=True) if ok), self._since(start))
        self._answers.tell(keys, good)
        for end in (Got.MISSING, Got.CORRUPT):
            if count := ends.count(end):
                self.counter.failed(end.value, count)
                logger.warning("KV tier %s: %d of %d blocks are %s; computing them.", self.name, count, len(keys), end)
        return good

    def save(self, key: bytes, block: Buffer) -> None:
        """Write a filled block some time soon, or not at all if too many wait. Takes a hold of its own."""
        with self._lock:
            if self._breaker.open or self._full.open or key in self._saving:
                return
            if len(self._waiting) >= self._backlog:
                self.counter.failed("backlog")
                return
            block.hold()
            self._saving.add(key)
            self._waiting.append((key, block))
        if not self._saves.submit(self._save_some):
            self._let_go(self._oldest_waiting())

    def given_up(self) -> None:
        """A load was not worth waiting for any longer."""
        self._down("timeout", "a load did not end in time")

    def reset(self) -> int:
        """Forget everything, in the store as well; until that is done nothing is known."""
        with self._lock:
            self._resets += 1
        count = self._answers.clear()
        self._saves.submit(self._reset)
        return count

    def counts(self) -> TierCounts:
        return replace(self.counter.snapshot(), evictions=self._store.evicted())

    def close(self, timeout: float) -> None:
        """Save what waits, then end; whatever takes longer than ``timeout`` seconds is left behind."""
        ended = [lane.close(timeout) for lane in (self._saves, self._loads, self._lookups)]
        if not all(ended):
            logger.warning("KV tier %s did not come to an end within %g s.", self.name, timeout)
            return
        closing = threading.Thread(target=self._store.close, name=f"kv-{self.name}-close", daemon=True)
        closing.start()
        closing.join(timeout)

    def _look_up(self, keys: Sequence[bytes]) -> None:
        try:
            known = self._store.contains(keys)
        except StoreDownError as error:
            self._answers.drop(keys)
            self._down("unavailable", str(error))
        else:
            self._up()
            self._answers.tell(keys, known)
        self.on_news()

    def _save_some(self) -> None:
        """Save the oldest waiting blocks; a job was queued for each, so later ones may find nothing left."""
        some = self._oldest_waiting()
        try:
            if some:
                self._save([key for key, _ in some], [block for _, block in some])
        finally:
            self._let_go(some)

    def _oldest_waiting(self) -> list[tuple[bytes, Buffer]]:
        with self._lock:
            return [self._waiting.popleft() for _ in range(min(_SAVED_AT_ONCE, len(self._waiting)))]

    def _let_go(self, saved: Sequence[tuple[bytes, Buffer]]) -> None:
        for _, block in saved:
            block.release()
        with self._lock:
            self._saving.difference_update(key for key, _ in saved)

    def _save(self, keys: Sequence[bytes], blocks: Sequence[Buffer]) -> None:
        if self._breaker.open:
            self.counter.failed("unavailable", len(keys))
            return
        start = self._clock.now()
        checks = [block.checksum or 0 for block in blocks]
        try:
            ends = list(self._store.put(keys, [block.view for block in blocks], checks))
        except StoreDownError as error:
            self._down("unavailable", str(error), len(keys))
            return
        new = [block for block, end in zip(blocks, ends, strict=True) if end is Put.STORED]
        self.counter.stored(len(new), sum(len(block.view) for block in new), self._since(start))
        kept = [key for key, end in zip(keys, ends, strict=True) if end is not Put.FULL]
        self._answers.tell(kept, [True] * len(kept))
        self._up()
        if full := ends.count(Put.FULL):
            self.counter.failed("full", full)
            if self._full.failed():
                logger.warning("KV tier %s is full: saving to it stops for a while.", self.name)
        else:
            self._full.succeeded()

    def _reset(self) -> None:
        try:
            self._store.reset()
        except StoreDownError as error:
            self._down("unavailable", str(error))
        finally:
            self._answers.clear()
            with self._lock:
                self._resets -= 1

    def _down(self, reason: str, why: str, blocks: int = 1) -> None:
        """What it said before does not count any more: it may come back empty."""
        self.counter.failed(reason, blocks)
        self._answers.clear()
        if self._breaker.failed():
            why = why.removesuffix(".")
            logger.warning("KV tier %s is left alone for a while: %s. Prefixes are computed instead.", self.name, why)

    def _up(self) -> None:
        if self._breaker.succeeded():
            logger.info("KV tier %s answers again.", self.name)

    def _since(self, start: float) -> float:
        return self._clock.now() - start


def _nobody() -> None:
    """Hears news until the tier is part of a hierarchy."""
