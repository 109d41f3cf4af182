"""Guides made on threads of their own, and kept: a form that comes again is copied, not compiled."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from energyopt.core.errors import EngineDeadError

from .ports import Guide, GuideMaker, GuideSpec

_KEPT = 64
_KEPT_CHARACTERS = 4 * 2**20
"""Of all sources together; a compiled form takes several times its source."""


class GuideShelf:
    """Bounded memory of compiled forms, the least recently asked for goes first. Any thread.

    At most ``workers`` compile at a time, so that bad schemas cannot take every thread of the process.
    """

    def __init__(self, maker: GuideMaker, *, kept: int = _KEPT, workers: int = 1) -> None:
        self._maker = maker
        self._kept = kept
        self._made: OrderedDict[GuideSpec, Guide] = OrderedDict()
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="guides")

    def __len__(self) -> int:
        return len(self._made)

    async def guide(self, spec: GuideSpec) -> Guide:
        """A guide at the beginning of an answer. Raises GuideError, or EngineDeadError after ``close``.

        A form that failed is not remembered.
        """
        found = self._find(spec)
        if found is not None:
            return found
        try:
            making = asyncio.get_running_loop().run_in_executor(self._pool, self._make, spec)
        except RuntimeError as error:  # a pool's word for one that was shut down
            raise EngineDeadError("The engine is closing and takes no more requests.") from error
        return await making

    def close(self) -> None:
        """End the threads, without waiting for what they compile; idempotent."""
        self._pool.shutdown(wait=False)

    def _make(self, spec: GuideSpec) -> Guide:
        found = self._find(spec)  # another request may have had the same wish meanwhile
        if found is not None:
            return found
        made = self._maker.make(spec)
        with self._lock:
            self._made[spec] = made
            while len(self._made) > self._kept or self._characters() > _KEPT_CHARACTERS:
                self._made.popitem(last=False)
            return made.fork()

    def _find(self, spec: GuideSpec) -> Guide | None:
        with self._lock:
            found = self._made.get(spec)
            if found is None:
                return None
            self._made.move_to_end(spec)
            return found.fork()

    def _characters(self) -> int:
        return sum(len(spec.source) for spec in self._made)
