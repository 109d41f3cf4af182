"""Guesses by a smaller model of the same vocabulary, all requests of a step together.

It draws as the model that is guessed for would: greedy where that is greedy, else with the same number between 0 and 1
for the same place, so that a draft which knows the distribution guesses the very token that is drawn from it.
(Leviathan et al., 2023, without their rejection: which token comes depends on the large model alone.)
"""

from __future__ import annotations

from collections.abc import Sequence

from energyopt.core.units import Bytes

from ..batch import Batch, Runner, ScheduledRequest, StepResult
from ..idle import Sleeper
from ..request import Request
from .ports import Guessed, Wish
from .shadows import Shadows


class DraftModel:
    """Satisfies ``BatchProposer`` over a runner of its own, which ``close`` closes.

    ``vocabulary`` is the number of token ids that both models know, ``context`` how many tokens the draft's holds. A
    request that it has not read yet is read ``budget`` tokens a step, together with the others', and has no guesses
    until then: nobody's step takes longer than a prompt's chunk.
    """

    def __init__(self, runner: Runner, *, vocabulary: int, context: int, budget: int) -> None:
        self._runner = runner
        self._shadows = Shadows(runner.cache, vocabulary)
        self._vocabulary = vocabulary
        self._context = context
        self._budget = budget

    def __len__(self) -> int:
        """How many requests are kept."""
        return len(self._shadows)

    @property
    def runner(self) -> Runner:
        return self._runner

    def propose_all(self, wishes: Sequence[Wish]) -> Guessed:
        """See ``ports.BatchProposer``. Raises what the runner raises."""
        drafts: list[list[int]] = [[] for _ in wishes]
        items = self._begin(wishes)
        late = sum(item.count for _, item in items) > sum(most + 1 for _, most in wishes)
        steps: list[StepResult] = []
        while items:
            items.sort(key=lambda one: one[1].count > 1)
            steps.append(self._runner.run(Batch(tuple(item for _, item in items))))
            following: list[tuple[int, ScheduledRequest]] = []
            for (place, item), sampled in zip(items, steps[-1].sampled, strict=True):
                shadow, draft = item.request, drafts[place]
                shadow.num_computed += item.count
                if sampled is None or not self._take(shadow, sampled.token):
                    continue
                draft.append(sampled.token)
                if len(draft) < wishes[place][1]:
                    following.append((place, ScheduledRequest(shadow, shadow.num_computed, 1, True)))
            items = following
        return Guessed([tuple(draft) for draft in drafts], steps[0].start if steps else None, late)

    def forget(self, request: Request) -> None:
        """See ``ports.Proposer.forget``."""
        self._shadows.forget(request.id)

    def sleep(self) -> Bytes:
        """Give the device's memory back, if the runner can; what it read is lost."""
        self._shadows.clear()
        return self._runner.sleep() if isinstance(self._runner, Sleeper) and self._runner.sleeps else Bytes(0)

    def wake(self) -> None:
        """Take the memory again. Raises OutOfMemoryError."""
        if isinstance(self._runner, Sleeper) and self._runner.sleeps:
            self._runner.wake()

    def close(self) -> None:
        """Free the device's memory; idempotent."""
        self._shadows.clear()
        self._runner.close()

    def _begin(self, wishes: Sequence[Wish]) -> list[tuple[int, ScheduledRequest]]:
        """What each wish lacks of its request's tokens, as far as places and the budget go."""
        keep = {request.id for request, _ in wishes}
        items: list[tuple[int, ScheduledRequest]] = []
        budget = self._budget
        for place, (request, most) in enumerate(wishes):
            shadow = self._shadows.follow(request) if request.num_tokens + most <= self._context else None
            if shadow is None:
                continue
            count = min(shadow.remaining, budget)
            if count and self._shadows.grow(shadow, shadow.num_tokens + most - 1, keep):
                reads_all = count == shadow.remaining
                items.append((place, ScheduledRequest(shadow, shadow.num_computed, count, reads_all)))
                budget -= count
        return items

    def _take(self, shadow: Request, token: int) -> bool:
        """Append a guess; False if it is one that can never come true."""
        if token >= self._vocabulary:
            return False
        if shadow.guide is not None:
            shadow.guide.advance(token)
            if shadow.guide.failure is not None:
                return False
        shadow.output.append(token)
        return True
