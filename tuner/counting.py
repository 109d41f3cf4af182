"""What belongs to a window: tokens, requests and latency samples.

Every count belongs to the instant at which it became true, and a window is half-open, so the counts of adjacent
windows add up to those of their union:

- an output token belongs to its arrival time, a prompt token and a cache hit to the end of the step that took it in;
- a request (finished or failed) belongs to its end; so do its ``e2e`` and ``tpot``;
- ``ttft`` belongs to the first token, a gap (``itl``) to its later token;
- a failed request counts as infinite for every latency, at its end.

What ends after the window is not judged by how it ended: the load aborts what is in flight when the window is over.
That it has waited longer than an objective allows is known by then, though, and ``overdue_in`` says so: otherwise an
engine that stalls would have kept every objective.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from energyopt.core.records import FinishReason, Phase, RequestRecord, StepRecord, StepShare
from energyopt.core.slo import SloMetric
from energyopt.core.units import Seconds


@dataclass(frozen=True, slots=True)
class Window:
    """The instants ``start <= t < end``. Raises ValueError unless it has a length."""

    start: Seconds
    end: Seconds

    def __post_init__(self) -> None:
        if not self.end > self.start:
            raise ValueError(f"a window from {self.start} to {self.end} has no length.")

    @property
    def length(self) -> Seconds:
        return Seconds(self.end - self.start)

    def __contains__(self, instant: float) -> bool:
        return self.start <= instant < self.end


@dataclass(frozen=True, slots=True)
class PromptCount:
    """Prompt tokens taken in within a window; ``by_tier`` are those of them that came from a cache."""

    tokens: int
    by_tier: Mapping[str, int]

    @property
    def cached(self) -> int:
        return sum(self.by_tier.values())


def ended_in(window: Window, requests: Iterable[RequestRecord]) -> list[RequestRecord]:
    """The requests that finished or failed in the window."""
    return [request for request in requests if request.end in window]


def count_output(window: Window, requests: Iterable[RequestRecord]) -> int:
    """Output tokens that arrived in the window, of every request."""
    return sum(time in window for request in requests for time in request.token_times)


def count_prompts(window: Window, requests: Iterable[RequestRecord], steps: Iterable[StepRecord]) -> PromptCount:
    """Prompt tokens taken in within the window.

    ``steps`` come in order and reach back to the first, because each position of a prompt counts once: a preempted
    request that computes its prompt again (or finds it in the cache) has asked for nothing new.
    """
    length = {request.request_id: request.prompt_tokens for request in requests}
    reached: dict[str, int] = {}
    tokens, by_tier = 0, Counter[str]()
    for step in steps:
        for share in step.shares:
            if share.phase is not Phase.PREFILL:
                continue
            before = reached.get(share.request_id, 0)
            after = share.context_tokens + share.computed_tokens
            after = max(before, min(after, length.get(share.request_id, after)))
            reached[share.request_id] = after
            if step.end in window:
                hits = _fresh_hits(share, before, after)
                by_tier.update(hits)
                tokens += sum(hits.values()) + after - max(before, min(share.context_tokens, after))
    return PromptCount(tokens, dict(by_tier))


def _fresh_hits(share: StepShare, before: int, after: int) -> dict[str, int]:
    """The share's cache hits by tier at positions from ``before`` to ``after``; tiers lie one behind the other."""
    hits, position = {}, 0
    for tier, count in share.cached_tokens.items():
        fresh = min(position + count, after) - max(position, before)
        if fresh > 0:
            hits[tier] = fresh
        position += count
    return hits


def samples_in(window: Window, metric: SloMetric, requests: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Records whose samples of ``metric`` are exactly those of the window (cut to it where a gap is the sample)."""
    belongs = _BELONGS.get(metric)
    chosen = []
    for request in requests:
        if request.end in window and (request.failed or belongs is None):
            chosen.append(request)
        elif belongs is not None:
            # It may still have been aborted later, after this window: that does not count here.
            part = belongs(window, replace(request, finish_reason=FinishReason.LENGTH))
            chosen.extend([] if part is None else [part])
    return chosen


def overdue_in(
    window: Window, metric: SloMetric, limit: Seconds, requests: Iterable[RequestRecord]
) -> list[RequestRecord]:
    """Records of what has waited longer than ``limit`` for its ``metric`` when the window ends, cut to that instant.

    Each gives one sample, the wait until then: less than the true latency, and more than ``limit``. Known for ttft, itl
    and e2e (interactivity: its gap).
    """
    wait = _WAITS.get(metric)
    if wait is None:
        return []
    waiting = [request for request in requests if request.arrival < window.end <= request.end]
    cut = [found for request in waiting if (found := wait(window.end, request)) is not None]
    return [request for request, waited in cut if waited > limit]


Cut = tuple[RequestRecord, float]


def _first_token_awaited(now: Seconds, request: RequestRecord) -> Cut | None:
    if request.first_token is not None and request.first_token < now:
        return None
    return _cut(request, now, (now,)), now - request.arrival


def _next_token_awaited(now: Seconds, request: RequestRecord) -> Cut | None:
    last = max((time for time in request.token_times if time < now), default=None)
    return None if last is None else (_cut(request, now, (last, now)), now - last)


def _end_awaited(now: Seconds, request: RequestRecord) -> Cut | None:
    return _cut(request, now, ()), now - request.arrival


def _cut(request: RequestRecord, now: Seconds, tokens: tuple[Seconds, ...]) -> RequestRecord:
    return replace(request, end=now, token_times=tokens, finish_reason=FinishReason.LENGTH)


_WAITS: Mapping[SloMetric, Callable[[Seconds, RequestRecord], Cut | None]] = {
    SloMetric.TTFT: _first_token_awaited,
    SloMetric.ITL: _next_token_awaited,
    SloMetric.INTERACTIVITY: _next_token_awaited,
    SloMetric.E2E: _end_awaited,
}


def _with_first_token_in(window: Window, request: RequestRecord) -> RequestRecord | None:
    return request if request.first_token is not None and request.first_token in window else None


def _with_gaps_in(window: Window, request: RequestRecord) -> RequestRecord | None:
    times = request.token_times
    ends = [index for index in range(1, len(times)) if times[index] in window]
    return replace(request, token_times=times[ends[0] - 1 : ends[-1] + 1]) if ends else None


_BELONGS: Mapping[SloMetric, Callable[[Window, RequestRecord], RequestRecord | None]] = {
    SloMetric.TTFT: _with_first_token_in,
    SloMetric.ITL: _with_gaps_in,
    SloMetric.INTERACTIVITY: _with_gaps_in,
}
"""Metrics whose samples do not belong to the end of the request."""
