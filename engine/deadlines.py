"""Which live streams have run out of time: a heap of the moments until which requests may run."""

from __future__ import annotations

import heapq
from itertools import count

from energyopt.core.units import Seconds

from .stream import Stream

_FEW = 64
"""Streams whose keeping costs nothing."""


class Deadlines:
    """Streams by the end of their time. One thread.

    Streams that ended earlier are dropped when they come up, and all of them once they are more than those that live.
    """

    def __init__(self) -> None:
        self._sweep_at = _FEW
        self._heap: list[tuple[Seconds, int, Stream]] = []
        self._ticket = count()

    def watch(self, stream: Stream) -> None:
        """Take note of a stream whose request has a time limit."""
        request = stream.request
        if request.params.timeout is not None:
            due = Seconds(request.arrival + request.params.timeout)
            heapq.heappush(self._heap, (due, next(self._ticket), stream))
            if len(self._heap) > self._sweep_at:
                self._heap = [entry for entry in self._heap if entry[2].request.finish_reason is None]
                heapq.heapify(self._heap)
                self._sweep_at = _FEW + 2 * len(self._heap)

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._heap)

    @property
    def any(self) -> bool:
        """Whether anybody is watched; saves asking for the time."""
        return bool(self._heap)

    def due(self, now: Seconds) -> list[Stream]:
        """The streams whose time is over at ``now``; each is told once."""
        over: list[Stream] = []
        while self._heap and (self._heap[0][0] <= now or self._heap[0][2].request.finish_reason is not None):
            over.append(heapq.heappop(self._heap)[2])
        return over
