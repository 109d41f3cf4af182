"""Puts guesses into a planned batch, and counts what came of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..batch import Batch, ScheduledRequest, StepResult
from ..kv.coordinator import KvCoordinator
from ..plan import Plan
from ..request import Request
from .ports import BatchProposer, DepthPolicy, DraftCounts, Proposer, Wish


class Drafts:
    """``limit`` is the longest draft that the runner verifies. Belongs to the step loop's thread."""

    def __init__(self, proposer: Proposer | BatchProposer, policy: DepthPolicy, limit: int) -> None:
        self.counts = DraftCounts()
        self._proposer = proposer
        self._policy = policy
        self._limit = limit
        self._late = False

    def add_to(self, plan: Plan, cache: KvCoordinator) -> None:
        """Lengthen the planned decodes by guesses, as far as tokens and idle blocks go: nobody is preempted for one."""
        decodes = plan.decodes
        if not decodes:
            return
        self.counts.depth = depth = min(self._policy.depth(len(decodes)), self._limit)
        if depth == 0:
            return
        for number, draft in self._guesses(plan, decodes, depth):
            request = decodes[number].request
            if draft and cache.grow(request, request.num_tokens + len(draft)):
                plan.lengthen(number, draft)

    def _guesses(
        self, plan: Plan, decodes: Sequence[ScheduledRequest], depth: int
    ) -> Iterable[tuple[int, tuple[int, ...]]]:
        """Drafts by the number of their decode, within what is left of the budget."""
        places = [(number, item.request) for number, item in enumerate(decodes) if item.count == 1]
        if not isinstance(self._proposer, BatchProposer):
            for number, request in places:
                most = min(depth, plan.budget, _room(request))
                if most > 0:
                    yield number, self._proposer.propose(request, most)
            return
        wishes, left = dict[int, Wish](), plan.budget
        for number, request in places:
            most = min(depth, left, _room(request))
            if most > 0:
                wishes[number] = request, most
                left -= most
        guessed = self._proposer.propose_all(tuple(wishes.values()))
        plan.since, self._late = guessed.start, guessed.late
        yield from zip(wishes, guessed.drafts, strict=True)

    def stepped(self, batch: Batch, result: StepResult) -> None:
        """A step ended that did nothing but decode."""
        late, self._late = self._late, False
        if not late:
            self._policy.stepped(batch.num_tokens, result.start, result.end)

    def verified(self, item: ScheduledRequest, accepted: int) -> None:
        """What came of one draft."""
        self.counts.drafts += 1
        self.counts.drafted += len(item.draft)
        self.counts.accepted += accepted
        self.counts.by_place.update(range(accepted))
        self._policy.verified(len(item.draft), accepted)

    def forget(self, request: Request) -> None:
        self._proposer.forget(request)

    def snapshot(self) -> DraftCounts:
        """The counts as they are now."""
        return replace(self.counts, by_place=Counter(self.counts.by_place))

    @property
    def policy(self) -> DepthPolicy:
        return self._policy


def _room(request: Request) -> int:
    """Guesses that could all become tokens: the last token of an answer is one that no guess follows."""
    return request.params.max_tokens - len(request.output) - 1
