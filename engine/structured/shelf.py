"""Guides made on threads of their own, and kept: a form that comes again is copied, not compiled."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

from energyopt.core.errors import EngineDeadError, OverloadedError
from energyopt.core.units import Seconds

from .ports import Guide, GuideMaker, GuideSpec

_KEPT = 64
_KEPT_CHARACTERS = 4 * 2**20
"""Of all sources together; a compiled form takes several times its source."""

_QUEUED = 64
PATIENCE = Seconds(30.0)
"""How long a request waits for its guide: a form compiles within about a second, so others stand before it."""


class GuideShelf:
    """Bounded memory of compiled forms, the least recently asked for goes first. Any thread.

    At most ``workers`` compile at a time, so that bad schemas cannot take every thread of the process, and at most
    ``queued`` different forms wait for that or are compiled.
    """

    def __init__(self, maker: GuideMaker, *, kept: int = _KEPT, workers: int = 1, queued: int = _QUEUED) -> None:
        self._maker = maker
        self._kept = kept
        self._queued = queued
        self._closed = False
        self._made: OrderedDict[GuideSpec, Guide] = OrderedDict()
        self._making: dict[GuideSpec, Future[Guide]] = {}
        self._waiting: dict[GuideSpec, int] = {}
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="guides")

    def __len__(self) -> int:
        return len(self._made)

    @property
    def queued(self) -> int:
        """Forms that are compiled, or wait for it."""
        return len(self._making)

    async def guide(self, spec: GuideSpec, patience: Seconds = PATIENCE) -> Guide:
        """A guide at the beginning of an answer.

        Raises GuideError, OverloadedError where too many forms are waited for already or ``patience`` is over, or
        EngineDeadError after ``close``. A form that failed is not remembered, one that nobody waits for not compiled.
        """
        found = self._find(spec)
        if found is not None:
            return found
        making = self._ask(spec)
        try:
            async with asyncio.timeout(patience):
                made = await asyncio.shield(asyncio.wrap_future(making))
        except TimeoutError as error:
            message = f"{spec.field} was not compiled within {patience:g} s: other forms stand before it."
            raise OverloadedError(message, retry_after=patience) from error
        finally:
            self._leave(spec, making)
        with self._lock:
            return made.fork()

    def close(self) -> None:
        """End the threads, without waiting for what they compile; who waits gets EngineDeadError. Idempotent."""
        self._closed = True
        self._pool.shutdown(wait=False)

    def _ask(self, spec: GuideSpec) -> Future[Guide]:
        """The compilation of a form, begun now or by another request before."""
        with self._lock:
            making = self._making.get(spec)
            if making is None:
                if len(self._making) >= self._queued:
                    message = f"{len(self._making)} forms wait to be compiled already; {spec.field} asks for another."
                    raise OverloadedError(message, retry_after=1.0)
                try:
                    making = self._making[spec] = self._pool.submit(self._make, spec)
                except RuntimeError as error:  # a pool's word for one that was shut down
                    raise _closing() from error
            self._waiting[spec] = self._waiting.get(spec, 0) + 1
            return making

    def _leave(self, spec: GuideSpec, making: Future[Guide]) -> None:
        """One request waits no more. The last of them takes the form out of the queue, unless it is in the works."""
        with self._lock:
            self._waiting[spec] -= 1
            if self._waiting[spec]:
                return
            del self._waiting[spec]
            if self._making.get(spec) is making and making.cancel():
                del self._making[spec]

    def _make(self, spec: GuideSpec) -> Guide:
        try:
            if self._closed:
                raise _closing()
            made = self._maker.make(spec)
            with self._lock:
                self._made[spec] = made
                while len(self._made) > self._kept or self._characters() > _KEPT_CHARACTERS:
                    self._made.popitem(last=False)
            return made
        finally:
            with self._lock:
                del self._making[spec]

    def _find(self, spec: GuideSpec) -> Guide | None:
        with self._lock:
            found = self._made.get(spec)
            if found is None:
                return None
            self._made.move_to_end(spec)
            return found.fork()

    def _characters(self) -> int:
        return sum(len(spec.source) for spec in self._made)


def _closing() -> EngineDeadError:
    return EngineDeadError("The engine is closing and takes no more requests.")
