"""Where every layer reads every position, the short ways through the cache do what the long ones do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energyopt.core.config import EngineConfig
from energyopt.core.units import Bytes, Seconds
from engine.batch import CacheShape, Sampled, StepResult
from engine.kv.coordinator import KvCoordinator
from engine.kv.layout import Layout
from engine.request import Request, SamplingParams
from engine.scheduler import Scheduler

BLOCK = 4
LOADS = st.lists(
    st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=20).map(tuple), st.integers(1, 12)),
    min_size=1,
    max_size=6,
)
"""Prompts that share beginnings, and how many tokens each wants."""


def history(loads: list[tuple[tuple[int, ...], int]], blocks: int, budget: int) -> list[object]:
    """All steps of a scheduler over such a cache: who computes what, in which blocks, and what was found."""
    cache = KvCoordinator(CacheShape(blocks, BLOCK, Bytes(1)))
    config = EngineConfig(model="m", max_num_seqs=4, max_num_batched_tokens=budget)
    scheduler = Scheduler(config, cache, max_model_len=64)
    for number, (prompt, wanted) in enumerate(loads):
        scheduler.add(Request(str(number), prompt, SamplingParams(max_tokens=wanted), Seconds(number)))
    told: list[object] = []
    while (batch := scheduler.schedule()) is not None:
        told += [(item.request.id, item.start, item.count, tuple(item.request.block_ids)) for item in batch.items]
        sampled = [Sampled(1) if item.sample else None for item in batch.items]
        scheduler.settle(batch, StepResult(sampled, Seconds(0.0), Seconds(1.0)))
        scheduler.check_integrity()
    return [*told, cache.hit_tokens, cache.pool.evictions, scheduler.counters.preemptions]


@given(LOADS, st.integers(8, 20), st.sampled_from([4, 16, 64]))
def test_the_short_ways_do_what_the_long_ones_do(
    loads: list[tuple[tuple[int, ...], int]], blocks: int, budget: int
) -> None:
    short = history(loads, blocks, budget)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Layout, "plain", False)
        assert history(loads, blocks, budget) == short
