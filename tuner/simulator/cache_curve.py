"""How much cache a recorded workload needs: its calls through the engine's own scheduler and cache, with no model.

Each block of the trace becomes one block of the cache and every call ends before the next begins, in the order in
which they were sent. So the answer depends on the calls and the sizes alone: not on a machine, and not on time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from energyopt.core.config import EngineConfig
from energyopt.core.errors import ConfigError
from energyopt.core.units import Bytes, Seconds
from engine.batch import Batch, CacheShape, Sampled, StepResult
from engine.kv.coordinator import KvCoordinator
from engine.kv.layout import FullAttention, GroupSpec, RecurrentState
from engine.kv.null_tiers import NullTiers
from engine.request import Request, SamplingParams
from engine.scheduler import Scheduler

from ..workload.trace import Timed, Trace

SPAN = 2
"""Tokens that stand for one block of the trace. A prompt has one more, which no cache may answer."""

_ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
_MANY = 1 << 30
_NOTE_EVERY = 64

OnCall = Callable[[int, int], None]
"""Told now and then of (calls done, calls in all)."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Hits of a whole trace at one size of the device pool.

    ``capacity`` and all counts are blocks of the trace; None is without limit. ``hits`` are by tier ("device" is the
    pool). ``refused`` calls are longer than the pool and count as misses. ``loads`` are blocks brought up from a tier.
    """

    capacity: int | None
    blocks: int
    hits: Mapping[str, int]
    refused: int = 0
    evictions: int = 0
    loads: int = 0

    @property
    def hit_rate(self) -> float:
        """Blocks of prompts that were in some tier, over all."""
        return sum(self.hits.values()) / self.blocks if self.blocks else 0.0

    def rate_of(self, tier: str) -> float:
        return self.hits.get(tier, 0) / self.blocks if self.blocks else 0.0


@dataclass(frozen=True, slots=True)
class CacheModel:
    """What is kept for a token: ``recurrent`` adds a layer group with one state, as large as a block, for any prefix.

    ``interval`` is the retention interval in blocks: None keeps every state, 0 those at reachable boundaries.
    """

    recurrent: bool = False
    interval: int | None = 0

    @property
    def groups(self) -> tuple[GroupSpec, ...]:
        return (FullAttention(SPAN), *((RecurrentState(SPAN),) if self.recurrent else ()))


FULL_ATTENTION = CacheModel()


@dataclass(frozen=True, slots=True)
class BlockCalls:
    """A trace's prompts as blocks, in the order in which they were sent; ``skipped`` said nothing of their blocks.

    Ids are dense from 0, so ``distinct`` is the working set in blocks.
    """

    prompts: tuple[tuple[int, ...], ...]
    distinct: int
    block_tokens: int
    skipped: int = 0
    names: list[bytes] = field(default_factory=list, repr=False)

    @property
    def blocks(self) -> int:
        return sum(map(len, self.prompts))

    def ideal_hits(self) -> int:
        """Hits of a cache that forgets nothing, counted without an engine: the leading blocks seen before."""
        known: set[int] = set()
        hits = 0
        for prompt in self.prompts:
            hits += next((at for at, block in enumerate(prompt) if block not in known), len(prompt))
            known.update(prompt)
        return hits


def block_calls(trace: Trace, lanes: int | None = None) -> BlockCalls:
    """A trace's prompts in the order in which they were sent, or in which ``lanes`` clients would send them.

    A lane takes the next session when its last one has ended; without ``lanes`` sessions that have no common clock
    follow one another. Raises ConfigError for a trace that says nothing of its blocks.
    """
    if trace.block_tokens is None:
        raise ConfigError(f"{trace.name} has no block ids: a cache curve needs a Mooncake or an agentic session trace.")
    dense: dict[int, int] = {}
    prompts: list[tuple[int, ...]] = []
    skipped = 0
    for timed in trace.timeline() if lanes is None else _in_lanes(trace, lanes):
        if timed.call.blocks:
            prompts.append(tuple(dense.setdefault(block, len(dense)) for block in timed.call.blocks))
        else:
            skipped += 1
    if not prompts:
        raise ConfigError(f"{trace.name} has no call with block ids, so nothing is known of its reuse.")
    names = [block.to_bytes(16, "big") for block in range(len(dense))]
    return BlockCalls(tuple(prompts), len(dense), trace.block_tokens, skipped, names)


class NullRunner:
    """Answers every batch at once."""

    def __init__(self, cache: CacheShape) -> None:
        self.cache = cache
        self.devices: tuple[str, ...] = ()

    def run(self, batch: Batch) -> StepResult:
        return StepResult([Sampled(0) if item.sample else None for item in batch.items], Seconds(0.0), Seconds(0.0))

    def close(self) -> None:
        """There is nothing to free."""


def replay(
    calls: BlockCalls,
    capacity: int | None,
    *,
    tiers: Mapping[str, int | None] | None = None,
    model: CacheModel = FULL_ATTENTION,
    on_call: OnCall = lambda done, total: None,
) -> CurvePoint:
    """One pass of all calls through a pool of ``capacity`` blocks and the ``tiers`` below it (blocks by name)."""
    groups = len(model.groups)
    whole = calls.distinct * groups + 2 * max(map(len, calls.prompts))
    # One block a group holds what a call computes beyond the prompt and never keeps.
    shape = CacheShape((whole if capacity is None else capacity) + groups, SPAN, Bytes(1), model.groups)
    lower = NullTiers(tiers) if tiers else None
    interval = None if model.interval is None else model.interval * SPAN
    cache = KvCoordinator(shape, tiers=lower, retention_interval=interval, chunk_tokens=_MANY)
    config = EngineConfig(model="null", max_num_seqs=1, max_num_batched_tokens=_MANY)
    scheduler = Scheduler(config, cache, max_model_len=_MANY)
    runner = NullRunner(shape)
    hits: Counter[str] = Counter()
    refused = 0
    for number, request in enumerate(_requests(calls)):
        if cache.layout.peak_blocks(request.num_tokens, 1) > shape.num_blocks:
            refused += 1
            continue
        scheduler.add(request)
        while scheduler.has_work:
            batch = scheduler.schedule()
            if batch is not None:
                scheduler.settle(batch, runner.run(batch))
        for tier, tokens in request.cached_by_tier.items():
            hits[tier] += tokens // SPAN
        if number % _NOTE_EVERY == 0:
            on_call(number, len(calls.prompts))
    loads = sum(count.loads for count in lower.counts()) if lower is not None else 0
    return CurvePoint(capacity, calls.blocks, dict(hits), refused, cache.pool.evictions, loads)


def smallest_reaching(points: Sequence[CurvePoint], share: float, ideal: float) -> CurvePoint | None:
    """The smallest pool among ``points`` whose hit rate is at least ``share`` of ``ideal``; None if none is."""
    bounded = sorted((point for point in points if point.capacity is not None), key=lambda point: point.capacity or 0)
    return next((point for point in bounded if point.hit_rate >= share * ideal), None)


def _in_lanes(trace: Trace, lanes: int) -> list[Timed]:
    """Calls by time when ``lanes`` sessions run at once; within a session the recorded times hold."""
    free = [0.0] * max(1, lanes)
    order: list[tuple[float, int, int, Timed]] = []
    for number, session in enumerate(trace.sessions):
        lane = min(range(len(free)), key=free.__getitem__)
        begin = end = free[lane]
        alone = Trace(trace.name, (replace(session, arrival=None),), trace.block_tokens)
        for place, timed in enumerate(alone.timeline()):
            end = max(end, begin + (timed.call.start or 0.0))
            order.append((end, number, place, timed))
        free[lane] = end
    return [timed for *_, timed in sorted(order, key=lambda entry: entry[:3])]


def _requests(calls: BlockCalls) -> Iterator[Request]:
    """The calls with their blocks named beforehand: the trace's ids say already which prefixes are equal."""
    filler = (0,) * (SPAN * max(map(len, calls.prompts)) + 1)
    for number, prompt in enumerate(calls.prompts):
        request = Request(str(number), filler[: SPAN * len(prompt) + 1], _ONE_TOKEN, Seconds(float(number)))
        request.block_hashes = [calls.names[block] for block in prompt]
        yield request
