"""The cache's events for an asyncio program: batches as they come, from where a reader left off.

Nothing is recorded until somebody reads, and no longer than a while after the last reader has left.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from dataclasses import dataclass

from energyopt.core.errors import EngineDeadError

from .kv.events import EventLog, KvBatch

COALESCE = 0.01
"""Seconds in which events are gathered into a batch: a step or two."""
LINGER = 60.0
"""Seconds after the last reader's leaving in which events are still recorded, for one that comes back."""

Watch = Callable[[EventLog | None], "Future[int]"]


@dataclass(frozen=True, slots=True)
class KvNews:
    """A batch of the log ``epoch``. ``whole``: it lists everything, and what was known before is void."""

    epoch: str
    batch: KvBatch
    whole: bool


class KvEventFeed:
    """Reads one engine's events for any number of readers on one event loop.

    ``watch`` lets the cache note its events in a log, beginning with all that it holds, or in none. ``naming`` is
    tokens of a block of the first group, and of the unit over which names are chained.
    """

    def __init__(self, watch: Watch, naming: tuple[int, int], *, linger: float = LINGER) -> None:
        self.naming = naming
        self._watch, self._linger = watch, linger
        self._log: EventLog | None = None
        self._readers = 0
        self._news = asyncio.Event()
        self._starting = asyncio.Lock()
        self._stop: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def recording(self) -> bool:
        """Whether the cache notes its events now."""
        return self._log is not None

    async def read(self, epoch: str | None = None, after: int = 0) -> AsyncGenerator[KvNews | None]:
        """Batches from the one behind number ``after`` of log ``epoch``; a listing of everything where that is gone.

        None comes when there was nothing for 15 s, so that a dead connection or engine is found out. Ends with
        ``close``, or when a dead engine is asked to begin.
        """
        self._readers += 1
        if self._stop is not None:
            self._stop.cancel()
            self._stop = None
        try:
            while not self._closed:
                log = await self._recorded()
                news = self._news
                log.collect()
                batches = log.after(after) if log.epoch == epoch else None
                if batches is None:
                    epoch, after = log.epoch, log.newest
                    yield KvNews(log.epoch, log.listing(), whole=True)
                elif batches:
                    after = batches[-1].number
                    for batch in batches:
                        yield KvNews(log.epoch, batch, whole=False)
                elif not await self._waited(news):
                    yield None
        except EngineDeadError:
            return
        finally:
            self._readers -= 1
            if not self._readers and not self._closed:
                self._stop = asyncio.get_running_loop().call_later(self._linger, self._end)

    def close(self) -> None:
        """End every reader; on the event loop."""
        self._closed = True
        if self._stop is not None:
            self._stop.cancel()
        self._news.set()

    async def _recorded(self) -> EventLog:
        """The log that is being written, begun if need be, or begun anew if it lost something."""
        async with self._starting:
            if self._log is None or self._log.lost:
                log, loop = EventLog(), asyncio.get_running_loop()

                def tell() -> None:
                    with contextlib.suppress(RuntimeError):  # the loop has ended, and with it every reader
                        loop.call_soon_threadsafe(loop.call_later, COALESCE, self._wake)

                log.on_news = tell
                await asyncio.wrap_future(self._watch(log))
                self._log = log
            return self._log

    async def _waited(self, news: asyncio.Event) -> bool:
        try:
            async with asyncio.timeout(15.0):
                await news.wait()
        except TimeoutError:
            return False
        return True

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _end(self) -> None:
        if not self._readers:
            self._log = None
            with contextlib.suppress(EngineDeadError):  # then nothing is noted anyway
                self._watch(None)
