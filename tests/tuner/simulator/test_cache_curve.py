"""The cache curve: published hit rates, an LRU too simple to be wrong, and tiers below the pool."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.errors import ConfigError
from energyopt.core.units import Seconds
from tuner.export.curve_picture import curve_png
from tuner.simulator.cache_curve import (
    BlockCalls,
    CacheModel,
    CurvePoint,
    block_calls,
    replay,
    smallest_reaching,
)
from tuner.workload.formats import read_trace
from tuner.workload.trace import Agent, Call, Trace, TraceSession

TRACES = Path(__file__).parents[3].parent / "shared" / "data" / "traces"
CONVERSATION = TRACES / "mooncake" / "conversation_trace.jsonl"
THIN = TRACES / "claude_code_weka" / "thin16"

needs_traces = pytest.mark.skipif(not CONVERSATION.exists(), reason="the recorded traces are not on this machine")


@pytest.fixture(scope="module")
def conversation() -> BlockCalls:
    return block_calls(read_trace(CONVERSATION))


@needs_traces
def test_a_cache_that_forgets_nothing_has_the_published_hit_rate(conversation: BlockCalls) -> None:
    """Mooncake, FAST'25: 12,031 requests, 182,790 distinct blocks, 36.64 % of blocks hit."""
    assert (len(conversation.prompts), conversation.distinct) == (12_031, 182_790)
    point = replay(conversation, None)
    assert sum(point.hits.values()) == conversation.ideal_hits() == conversation.blocks - conversation.distinct
    assert f"{point.hit_rate:.2%}" == "36.64%"
    assert point.evictions == 0


@needs_traces
@pytest.mark.parametrize("corpus", ["main", "subagents"])
def test_tiers_below_a_quarter_of_the_working_set_reach_98_percent_of_the_ideal(corpus: str) -> None:
    calls = block_calls(read_trace(THIN / corpus), lanes=14)
    quarter = calls.distinct // 4
    ideal = calls.ideal_hits() / calls.blocks
    point = replay(calls, quarter, tiers={"host": quarter, "disk": None})
    rates = ", ".join(f"{tier} {point.rate_of(tier):.1%}" for tier in point.hits)
    print(f"\n{corpus}: {point.hit_rate:.2%} of blocks ({rates}), ideal {ideal:.2%}")  # noqa: T201 - a figure to see
    assert point.hit_rate >= 0.98 * ideal
    assert replay(calls, quarter).hit_rate < point.hit_rate


def trace_of(*prompts: tuple[int, ...]) -> Trace:
    sessions = tuple(
        TraceSession(f"s{number}", (Agent("root", (Call(None, 1, blocks, start=Seconds(0.0)),)),), Seconds(number))
        for number, blocks in enumerate(prompts)
    )
    return Trace("made", sessions, 64)


def chained(*prompts: list[int]) -> Trace:
    """Prompts whose equal ids stand behind equal prefixes, as the format asks."""
    names: dict[tuple[int, ...], int] = {}
    chains = [tuple(names.setdefault(tuple(p[: at + 1]), len(names)) for at in range(len(p))) for p in prompts]
    return trace_of(*chains)


def simple_lru(calls: BlockCalls, capacity: int) -> int:
    """Whole prompts are touched tail first, then what is too much is dropped, oldest first."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for prompt in calls.prompts:
        hits += next((at for at, block in enumerate(prompt) if block not in held), len(prompt))
        for block in reversed(prompt):
            held[block] = None
            held.move_to_end(block)
        while len(held) > capacity:
            held.popitem(last=False)
    return hits


prompt_lists = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=40)


@given(prompts=prompt_lists, capacity=st.integers(6, 40))
@settings(max_examples=60, deadline=None)
def test_the_pool_is_least_recently_used(prompts: list[list[int]], capacity: int) -> None:
    calls = block_calls(chained(*prompts))
    assert replay(calls, capacity).hits.get("device", 0) == simple_lru(calls, capacity)


@given(prompts=prompt_lists, recurrent=st.booleans())
@settings(max_examples=30, deadline=None)
def test_a_bottomless_tier_makes_up_for_any_pool(prompts: list[list[int]], recurrent: bool) -> None:
    calls = block_calls(chained(*prompts))
    model = CacheModel(recurrent, None)
    small = replay(calls, 16, tiers={"host": 3, "disk": None}, model=model)
    assert sum(small.hits.values()) == sum(replay(calls, None, model=model).hits.values()) == calls.ideal_hits()


def test_states_at_boundaries_only_hit_where_a_prompt_ended() -> None:
    calls = block_calls(chained([1, 2, 3, 4], [1, 2, 3, 4, 5], [1, 2, 9], [1, 2, 8]))
    sparse = replay(calls, None, model=CacheModel(recurrent=True, interval=0))
    dense = replay(calls, None, model=CacheModel(recurrent=True, interval=None))
    assert sum(sparse.hits.values()) == 4 + 0 + 2, "the third prompt shows where the fourth can go on"
    assert sum(dense.hits.values()) == 4 + 2 + 2


def test_a_prompt_longer_than_the_pool_is_a_miss() -> None:
    calls = block_calls(chained([1, 2, 3, 4], [1], [1]))
    point = replay(calls, 2)
    assert point.refused == 1
    assert point.hits == {"device": 1}
    assert point.hit_rate == 1 / 6


def test_lanes_interleave_sessions_that_have_no_common_clock() -> None:
    def session(name: str, first: int) -> TraceSession:
        calls = tuple(Call(None, 1, (first,) * (at + 1), start=Seconds(10.0 * at)) for at in range(2))
        return TraceSession(name, (Agent("root", calls),))

    trace = Trace("made", (session("a", 1), session("b", 2), session("c", 3)), 64)
    firsts = [[prompt[0] for prompt in block_calls(trace, lanes).prompts] for lanes in (None, 1, 2)]
    assert firsts == [[0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 2, 2]]


def test_what_says_nothing_of_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no block ids"):
        block_calls(Trace("plain", (), None))
    with pytest.raises(ConfigError, match="no call with block ids"):
        block_calls(trace_of(()))


def test_the_smallest_pool_that_is_enough() -> None:
    points = [CurvePoint(size, 100, {"device": hits}) for size, hits in ((None, 80), (40, 78), (20, 76), (10, 30))]
    found = smallest_reaching(points, 0.95, 0.8)
    assert found is not None
    assert found.capacity == 20
    assert smallest_reaching(points, 0.99, 0.8) is None


def test_the_picture_is_a_png() -> None:
    points = [CurvePoint(size, 100, {"device": size // 10, "host": 5}) for size in (100, 400)]
    for some in (points, points[:1], [CurvePoint(None, 100, {})]):
        assert curve_png("made", some, ("device", "host"), 0.5, 64).startswith(b"\x89PNG")
