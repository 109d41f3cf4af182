"""Sparse retention: the pure function against its definition, the stops it asks for, and what it is worth."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energyopt.core.config import EngineConfig
from energyopt.core.errors import ConfigError
from energyopt.core.units import Bytes, Seconds
from engine.batch import Batch, CacheShape, Sampled, StepResult
from engine.kv.coordinator import KvCoordinator
from engine.kv.layout import ChunkedLocal, FullAttention, GroupSpec, Layout, RecurrentState, SlidingWindow
from engine.kv.retention import NEVER, Retention, keeps
from engine.request import Request, SamplingParams
from engine.scheduler import Scheduler

GRAIN = 8
GROUPS: tuple[GroupSpec, ...] = (
    FullAttention(8),
    SlidingWindow(4, window=1),
    SlidingWindow(4, window=10),
    SlidingWindow(8, window=40),
    ChunkedLocal(4, chunk=16),
    RecurrentState(4),
    RecurrentState(8),
)
boundaries = st.lists(st.integers(1, 12).map(lambda n: n * GRAIN), max_size=3)


def needed(group: GroupSpec, end: int, drop: int) -> set[int]:
    """The blocks that are read to go on from ``end - drop`` and, for attention, to know the prefix up to ``end``."""
    start = max(0, end - drop)
    if isinstance(group, RecurrentState):
        return {start // group.block_tokens - 1} - {-1}
    return {position // group.block_tokens for position in range(end) if _reads(group, start, position)}


def _reads(group: GroupSpec, at: int, position: int) -> bool:
    if isinstance(group, SlidingWindow):
        return position > at - group.window
    if isinstance(group, ChunkedLocal):
        return position >= at // group.chunk * group.chunk
    return True


@given(
    group=st.sampled_from(GROUPS),
    ends=boundaries,
    interval=st.sampled_from((0, GRAIN, 3 * GRAIN, 6 * GRAIN)),
    drop=st.sampled_from((0, GRAIN)),
)
def test_a_block_is_kept_if_and_only_if_a_reachable_boundary_needs_it(
    group: GroupSpec, ends: list[int], interval: int, drop: int
) -> None:
    last = 24 * GRAIN
    wanted: set[int] = set()
    for end in ends:
        wanted |= needed(group, end, drop)
    for end in range(interval, last + 12 * GRAIN, interval) if interval else ():
        # A state is kept at the segment's end itself: what is known beyond it makes the drop good.
        wanted |= needed(group, end, 0 if isinstance(group, RecurrentState) else drop)
    for index in range(last // group.block_tokens):
        kept = keeps(group, index, ends, interval, drop)
        assert kept == (isinstance(group, FullAttention) or index in wanted), f"block {index}"
        assert keeps(group, index, ends, None, drop)


@pytest.mark.parametrize(
    ("interval", "allowed"), [(None, True), (0, True), (96, True), (192, True), (64, False), (32, False)]
)
def test_an_interval_is_checked_against_the_scheduler_block(interval: int | None, allowed: bool) -> None:
    layout = Layout((FullAttention(32), RecurrentState(48)))
    if allowed:
        assert Retention(layout, interval).scheduler_block == 96
        return
    with pytest.raises(
        ConfigError, match=f"retention_interval = {interval} is not allowed: it must be 0 or a multiple of 96"
    ):
        Retention(layout, interval)


def test_boundaries_are_before_the_last_token_and_where_prompts_part() -> None:
    retention = Retention(Layout((FullAttention(8), RecurrentState(8))), 0)
    assert retention.boundaries(17, 0) == (16,)
    assert retention.boundaries(16, 0) == (8,)
    assert retention.boundaries(40, 21) == (16, 32)
    assert retention.boundaries(3, 0) == ()


def test_chunks_stop_where_a_state_is_kept() -> None:
    layout = Layout((FullAttention(8), RecurrentState(8)))
    assert Retention(Layout((FullAttention(8),)), 0).stop(0, (16,)) == NEVER
    assert [Retention(layout, 0).stop(at, (16, 40)) for at in (0, 15, 16, 40)] == [16, 16, 40, NEVER]
    assert [Retention(layout, 24).stop(at, (40,)) for at in (0, 24, 40)] == [24, 40, 48]
    assert Retention(layout, None).stop(3, ()) == 8
    assert Retention(layout, 0, drop=8).stop(0, (16,)) == 8


# A model of many cheap layers: attention over everything in large blocks, windows and states in small ones.
HYBRID = (
    FullAttention(256),
    SlidingWindow(64, window=128),
    SlidingWindow(64, window=128),
    RecurrentState(64),
    RecurrentState(64),
)
SESSIONS, AT_ONCE, CONTEXT, TURNS = 14, 4, 16_384, 3


def replay_sessions(interval: int | None, *, exceeds: int) -> list[float]:
    """Hit rate of every turn of 14 sessions whose contexts would fill the pool ``exceeds`` times.

    While a few compute the others wait for their tools, so their prefixes are idle and can be flushed.
    """
    blocks = SESSIONS * sum(CONTEXT // group.block_tokens for group in HYBRID)
    shape = CacheShape(blocks // exceeds, 256, Bytes(1), HYBRID)
    config = EngineConfig(model="null", max_num_seqs=AT_ONCE, max_num_batched_tokens=2048)
    cache = KvCoordinator(shape, retention_interval=interval, chunk_tokens=2048)
    scheduler = Scheduler(config, cache, max_model_len=1 << 20)
    pick = random.Random(1)
    contexts = [[pick.randrange(50_000) for _ in range(CONTEXT)] for _ in range(SESSIONS)]
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    rates = []
    for turn in range(TURNS):
        sent = [Request(f"{turn}-{at}", tuple(own), params, Seconds(0.0)) for at, own in enumerate(contexts)]
        for request in sent:
            scheduler.add(request)
        while scheduler.has_work:
            batch = scheduler.schedule()
            assert batch is not None
            scheduler.settle(batch, _answer(batch))
        scheduler.check_integrity()
        rates.append(sum(request.cached_tokens for request in sent) / sum(len(request.prompt) for request in sent))
        for request, own in zip(sent, contexts, strict=True):
            own += [*request.output, *(pick.randrange(50_000) for _ in range(300))]
    return rates


def _answer(batch: Batch) -> StepResult:
    return StepResult([Sampled(7) if item.sample else None for item in batch.items], Seconds(0.0), Seconds(0.0))


def test_sessions_that_exceed_the_pool_ten_times_are_hit_with_boundaries_only() -> None:
    """vllm#43447, #45845, #47782: dense states and windows flush everything; at boundaries only they fit."""
    sparse, dense = replay_sessions(0, exceeds=10), replay_sessions(None, exceeds=10)
    for name, rates in (("boundaries only", sparse), ("dense", dense)):
        print(f"\n{SESSIONS} sessions, {name}: hit rate by turn {', '.join(f'{rate:.1%}' for rate in rates)}")  # noqa: T201
    assert all(rate >= 0.95 for rate in sparse[1:])
    assert all(rate <= 0.5 for rate in dense[1:])
