"""The queue of requests that wait for admission, ordered by a policy."""

from __future__ import annotations

import heapq

from .policy import AdmissionPolicy
from .request import Request, Status


class WaitingQueue:
    """A heap of waiting requests; leaving it out of turn is O(1) and swept up later.

    A preempted request enters before others of its rank, so several that were preempted in one step, youngest first,
    come back in their old order.
    """

    def __init__(self, policy: AdmissionPolicy) -> None:
        self._policy = policy
        self._heap: list[tuple[tuple[float, ...], int, Request]] = []
        self._tickets: dict[str, int] = {}
        self._entries = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def push(self, request: Request) -> None:
        self._entries += 1
        ticket = -self._entries if request.status is Status.PREEMPTED else self._entries
        self._tickets[request.id] = ticket
        heapq.heappush(self._heap, (self._policy.rank(request), ticket, request))

    def peek(self) -> Request:
        """The next request; the queue must not be empty."""
        while self._tickets.get(self._heap[0][2].id) != self._heap[0][1]:
            heapq.heappop(self._heap)
        return self._heap[0][2]

    def pop(self) -> Request:
        request = self.peek()
        self.discard(request)
        return request

    def discard(self, request: Request) -> None:
        """Take a request out wherever it stands."""
        del self._tickets[request.id]
        # Entries that left out of turn stay in the heap until they surface; bound what they can hold on to.
        if len(self._heap) > 2 * len(self._tickets) + 64:
            self._heap = [entry for entry in self._heap if self._tickets.get(entry[2].id) == entry[1]]
            heapq.heapify(self._heap)
