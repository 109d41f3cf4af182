"""A batch in the making, and what is left of its token budget."""

from __future__ import annotations

from energyopt.core.units import Seconds

from .batch import Batch, BlockCopy, ScheduledRequest
from .request import Request


class Plan:
    """A batch in the making, and what is left of its token budget."""

    def __init__(self, budget: int, scores: int = 0) -> None:
        """``scores`` is how many prompt tokens may be scored."""
        self.budget = budget
        self.scores = scores
        self.since: Seconds | None = None
        """When a device began to compute something for this batch, before the batch itself."""
        self._decodes: list[ScheduledRequest] = []
        self._prefills: list[ScheduledRequest] = []

    @property
    def empty(self) -> bool:
        return not (self._decodes or self._prefills)

    def decode(self, request: Request) -> None:
        """Add a running request that decodes."""
        self._decodes.append(ScheduledRequest(request, request.num_computed, 1, True))
        self.budget -= 1

    def most(self, request: Request) -> int:
        """How many of its next tokens a request may compute here."""
        most = min(request.remaining, self.budget)
        if request.unscored <= self.scores:
            return most
        return min(most, len(request.scores) + self.scores - request.num_computed)

    def add(self, request: Request, count: int) -> None:
        """Also a request that comes back from preemption may be a decode: the cache can hold all but its last token."""
        start = request.num_computed
        scored = min(request.unscored, max(0, start + count - len(request.scores))) if request.unscored else 0
        item = ScheduledRequest(request, start, count, start + count == request.num_tokens, scored=scored)
        (self._decodes if is_decode(item) else self._prefills).append(item)
        self.budget -= count
        self.scores -= scored

    @property
    def decodes(self) -> tuple[ScheduledRequest, ...]:
        """The decodes so far, in order."""
        return tuple(self._decodes)

    def lengthen(self, number: int, draft: tuple[int, ...]) -> None:
        """Let the decode of that number be followed by guesses, which its blocks must have room for."""
        item = self._decodes[number]
        self._decodes[number] = ScheduledRequest(item.request, item.start, 1 + len(draft), True, draft)
        self.budget -= len(draft)

    def batch(self, copies: tuple[BlockCopy, ...]) -> Batch:
        return Batch((*self._decodes, *self._prefills), copies, self.since)


def is_decode(item: ScheduledRequest) -> bool:
    """``item.request.phase is DECODE`` as it was when the item was planned, and cheaper to ask."""
    return item.count == 1 and item.sample and bool(item.request.output)
