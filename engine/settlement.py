"""What the result of a step means for its requests: tokens, computed positions, and ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from energyopt.core.errors import EngineError
from energyopt.core.records import FinishReason, Phase, StepShare
from energyopt.core.units import Seconds

from .batch import Batch, Sampled, ScheduledRequest, StepResult
from .ending import Endings
from .kv.coordinator import KvCoordinator
from .plan import is_decode
from .request import Request, Status, TokenLogprobs
from .settled import NewToken, Settled
from .speculative.drafts import Drafts

_NOTHING_CACHED: Mapping[str, int] = {}


class Settlement:
    """Takes results over, item by item. ``finish`` ends a request; ``hits`` are told in the step that admits one."""

    def __init__(
        self,
        cache: KvCoordinator,
        endings: Endings,
        finish: Callable[[Request, FinishReason], None],
        drafts: Drafts | None = None,
    ) -> None:
        self.hits: dict[str, Mapping[str, int]] = {}
        self._cache = cache
        self._endings = endings
        self._finish = finish
        self._drafts = drafts

    def settle(self, batch: Batch, result: StepResult) -> Settled:
        """Raises EngineError if the result does not answer the batch item by item."""
        if len(result.sampled) != len(batch.items):
            raise EngineError(f"The runner answered {len(result.sampled)} of {len(batch.items)} scheduled requests.")
        tokens: list[NewToken] = []
        shares: list[StepShare] = []
        _take_scores(batch, result.scores)
        hits, commit = self.hits, self._cache.commit
        for item, sampled in zip(batch.items, result.sampled, strict=True):
            request, start, count = item.request, item.start, item.count
            cached = hits.pop(request.id, _NOTHING_CACHED) if hits else _NOTHING_CACHED
            phase = Phase.DECODE if item.draft or (count == 1 and is_decode(item)) else Phase.PREFILL
            shares.append(StepShare(request.id, phase, count, start, cached))
            if request.scheduled is None:
                request.scheduled = result.start
            if request.status is Status.FINISHED:
                continue  # while its batch was under way
            if (sampled is not None) != item.sample:
                raise EngineError(f"The runner sampled for request {request.id!r} against the batch.")
            if item.draft and sampled is not None:
                tokens.append(self._verify(item, sampled, result.end))
                continue
            if start + count < request.kv.quiet:  # as ``commit`` would, and a call saved
                request.num_computed = start + count
            else:
                commit(request, start + count)
            if sampled is not None:
                tokens.append(self._append(request, sampled, result.end))
        if self._drafts is not None and all(share.phase is Phase.DECODE for share in shares):
            self._drafts.stepped(batch, result)
        return Settled(tuple(tokens), tuple(shares))

    def _append(self, request: Request, sampled: Sampled, at: Seconds) -> NewToken:
        """Add a sampled token and end the request if the token ends it: at the latest at the end of the context.

        A request whose prompt alone was to be read ends without a token.
        """
        if request.params.max_tokens == 0:
            self._finish(request, FinishReason.LENGTH)
            return NewToken(request, None)
        reason = self._take(request, sampled, at)
        if reason is not None:
            self._finish(request, reason)
        return NewToken(request, sampled)

    def _verify(self, item: ScheduledRequest, sampled: Sampled, at: Seconds) -> NewToken:
        """Add the token of a drafted step and those that guesses made possible, up to one that ends the request.

        Positions of guesses that came true are computed; those of others are computed again later.
        """
        request, kept = item.request, 0
        reason: FinishReason | None = None
        for one in (sampled, *sampled.more):
            kept += 1
            reason = self._take(request, one, at)
            if reason is not None:
                break
        self._cache.commit(request, item.start + kept)
        if self._drafts is not None:
            self._drafts.verified(item, len(sampled.more))
        if reason is not None:
            self._finish(request, reason)
        return NewToken(request, Sampled(sampled.token, sampled.logprobs, sampled.more[: kept - 1]))

    def _take(self, request: Request, sampled: Sampled, at: Seconds) -> FinishReason | None:
        request.output.append(sampled.token)
        request.token_times.append(at)
        return self._endings.reason(request)


def _take_scores(batch: Batch, scores: Sequence[tuple[TokenLogprobs, ...]]) -> None:
    """What each prompt learned of its tokens. Raises EngineError if that is not what was asked for."""
    if not any(item.scored for item in batch.items):
        return
    for number, item in enumerate(batch.items):
        found = scores[number] if number < len(scores) else ()
        if len(found) != item.scored:
            name = item.request.id
            raise EngineError(f"The runner scored {len(found)} of {item.scored} prompt tokens of request {name!r}.")
        item.request.scores += found
