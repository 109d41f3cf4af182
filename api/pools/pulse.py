"""Watches that the engines of both pools live: one that stands still, or says that it is dead, is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from energyopt.core.clock import Clock

from .app import PoolsFront
from .workers import Worker

EVERY, SILENCE = 2.0, 60.0
"""Seconds between two looks, and without an answer until an engine counts as stuck: a machine may be busy for long."""

_DEAD = 503


class Pulse:
    """One task beside the requests. ``on_dead`` hears an engine's name and what is wrong, and replaces its process.

    An engine whose thread has died, after the loss of a rank for example, answers that it is dead as long as nobody
    ends it: and since it has no leg it would be given every request.
    """

    def __init__(
        self,
        front: PoolsFront,
        clock: Clock,
        on_dead: Callable[[str, str], None],
        *,
        every: float = EVERY,
        silence: float = SILENCE,
    ) -> None:
        self._front = front
        self._clock = clock
        self._on_dead = on_dead
        self._every, self._silence = every, silence
        self._silent: dict[str, tuple[str, float]] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._every)
            await self.once()

    async def once(self) -> None:
        """One look at every engine that is up."""
        await asyncio.gather(*(self._feel(worker) for worker in self._front.pools.workers))

    async def _feel(self, worker: Worker) -> None:
        url = worker.url
        if url is None:
            return
        status = await self._front.status_of(url, "/health", min(self._silence, 10.0))
        if status is not None and status != _DEAD:
            self._silent.pop(worker.name, None)
        elif worker.url == url and (wrong := self._wrong(worker.name, url, status)) is not None:
            self._silent.pop(worker.name, None)
            self._front.pools.down(worker.name)
            self._on_dead(worker.name, wrong)

    def _wrong(self, name: str, url: str, status: int | None) -> str | None:
        """What is wrong with an engine that did not answer, or that answered badly; None while it may recover."""
        if status is not None:
            return "says that it is dead"
        known, since = self._silent.get(name, ("", 0.0))
        if known != url:
            since = self._clock.now()
            self._silent[name] = (url, since)
        return f"has said nothing for {self._silence:g} s" if self._clock.now() - since >= self._silence else None
