"""Puts guesses into a planned batch, and counts what came of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ..batch import ScheduledRequest
from ..kv.coordinator import KvCoordinator
from ..plan import Plan
from ..request import Request
from .ports import DepthPolicy, DraftCounts, Proposer


class Drafts:
    """``limit`` is the longest draft that the runner verifies. Belongs to the step loop's thread."""

    def __init__(self, proposer: Proposer, policy: DepthPolicy, limit: int) -> None:
        self.counts = DraftCounts()
        self._proposer = proposer
        self._policy = policy
        self._limit = limit

    def add_to(self, plan: Plan, cache: KvCoordinator) -> None:
        """Lengthen the planned decodes by guesses, as far as tokens and idle blocks go: nobody is preempted for one."""
        decodes = plan.decodes
        if not decodes:
            return
        self.counts.depth = depth = min(self._policy.depth(len(decodes)), self._limit)
        if depth == 0:
            return
        for number, item in enumerate(decodes):
            most = min(depth, plan.budget, _room(item.request))
            if item.count != 1 or most < 1:
                continue
            draft = self._proposer.propose(item.request, most)
            if draft and cache.grow(item.request, item.request.num_tokens + len(draft)):
                plan.lengthen(number, draft)

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
