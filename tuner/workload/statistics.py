"""What a trace is like: lengths, reuse, sessions, and how its arrivals bunch.

The ideal hit rate is that of a cache without limits: blocks that stood in an unbroken prefix of known blocks, over all
blocks, in the order of sending. It is what the best server could reach, not what any will.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean, pstdev

from pydantic import Field

from energyopt.core.results import Result

from .trace import Timed, Trace

_BIN = 60.0


class Spread(Result):
    """A distribution in a few numbers (nearest rank)."""

    count: int
    mean: float
    p10: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """None without values."""
        ordered = sorted(values)
        if not ordered:
            return None

        def rank(q: float) -> float:
            return ordered[max(0, math.ceil(q * len(ordered) - 1e-9) - 1)]

        return cls(
            count=len(ordered),
            mean=fmean(ordered),
            p10=rank(0.1),
            p50=rank(0.5),
            p90=rank(0.9),
            p99=rank(0.99),
            max=ordered[-1],
        )


class Reuse(Result):
    """``block_hits`` of ``blocks`` could come from an unlimited cache, and ``token_hits`` of ``tokens``."""

    block_tokens: int
    blocks: int
    block_hits: int
    tokens: int
    token_hits: int
    distinct_blocks: int
    uncached_input: Spread | None = None

    @property
    def hit_rate(self) -> float | None:
        """Per block."""
        return self.block_hits / self.blocks if self.blocks else None

    @property
    def token_hit_rate(self) -> float | None:
        return self.token_hits / self.tokens if self.tokens else None


class Burstiness(Result):
    """``cv`` of the gaps between arrivals (1 is Poisson); ``peak_to_mean`` of requests per minute."""

    span: float
    rate: float
    cv: float | None
    peak_to_mean: float
    per_minute: tuple[int, ...] = Field(default=())


class TraceStatistics(Result):
    """Everything ``energyopt workload describe`` says. Unknown parts are None."""

    name: str
    sessions: int
    requests: int
    sub_agents: int
    skipped: int
    input_tokens: Spread | None
    output_tokens: Spread | None
    requests_per_session: Spread | None
    think_time: Spread | None
    session_span: Spread | None
    reuse: Reuse | None
    arrivals: Burstiness | None

    @property
    def input_to_output(self) -> float | None:
        """Input tokens for each output token."""
        if self.input_tokens is None or self.output_tokens is None or not self.output_tokens.mean:
            return None
        return self.input_tokens.mean * self.input_tokens.count / (self.output_tokens.mean * self.output_tokens.count)


def describe(trace: Trace) -> TraceStatistics:
    """The statistics of ``trace``."""
    order = trace.timeline()
    calls = [timed.call for timed in order]
    spans = (max((c.start for c in s.calls if c.start is not None), default=None) for s in trace.sessions)
    return TraceStatistics(
        name=trace.name,
        sessions=len(trace.sessions),
        requests=len(calls),
        sub_agents=sum(len(session.agents) - 1 for session in trace.sessions),
        skipped=len(trace.skipped),
        input_tokens=Spread.of(call.input_tokens for call in calls if call.input_tokens is not None),
        output_tokens=Spread.of(call.output_tokens for call in calls if call.output_tokens is not None),
        requests_per_session=Spread.of(sum(1 for _ in session.calls) for session in trace.sessions),
        think_time=Spread.of(call.think_time for call in calls if call.think_time is not None),
        session_span=Spread.of(span for span in spans if span is not None and span > 0),
        reuse=reuse_of(trace, order),
        arrivals=_burstiness([timed.time for timed in order if timed.time is not None]),
    )


def prefix_hits(order: Iterable[Timed]) -> Iterator[int]:
    """For each call in order, how many of its leading blocks were known: a cache without limits."""
    known: set[int] = set()
    for timed in order:
        blocks = timed.call.blocks
        yield next((index for index, name in enumerate(blocks) if name not in known), len(blocks))
        known.update(blocks)


def reuse_of(trace: Trace, order: Sequence[Timed]) -> Reuse | None:
    """None for a trace that says nothing about blocks."""
    block = trace.block_tokens
    if block is None or not any(timed.call.blocks for timed in order):
        return None
    blocks = block_hits = tokens = token_hits = 0
    distinct: set[int] = set()
    uncached = []
    for timed, hits in zip(order, prefix_hits(order), strict=True):
        length = timed.call.input_tokens or 0
        found = min(hits * block, length)
        blocks += len(timed.call.blocks)
        block_hits += hits
        tokens += length
        token_hits += found
        uncached.append(length - found)
        distinct.update(timed.call.blocks)
    return Reuse(
        block_tokens=block,
        blocks=blocks,
        block_hits=block_hits,
        tokens=tokens,
        token_hits=token_hits,
        distinct_blocks=len(distinct),
        uncached_input=Spread.of(uncached),
    )


def _burstiness(times: Sequence[float]) -> Burstiness | None:
    """None without two arrivals at different times."""
    if len(times) < 2 or times[-1] <= times[0]:
        return None
    span = times[-1] - times[0]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    counted = Counter(int((time - times[0]) // _BIN) for time in times)
    minutes = tuple(counted[index] for index in range(int(span // _BIN) + 1))
    mean = fmean(gaps)
    return Burstiness(
        span=span,
        rate=(len(times) - 1) / span,
        cv=pstdev(gaps) / mean if mean > 0 else None,
        peak_to_mean=max(minutes) / fmean(minutes),
        per_minute=minutes,
    )
