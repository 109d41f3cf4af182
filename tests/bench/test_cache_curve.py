"""The LRU capacity curve of the Mooncake conversation trace, through scheduler and cache with a null runner."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.bench.figures import Report
from tuner.simulator.cache_curve import block_calls, replay
from tuner.workload.formats import read_trace

pytestmark = pytest.mark.bench
TRACE = Path(__file__).parents[2].parent / "shared" / "data" / "traces" / "mooncake" / "conversation_trace.jsonl"

PUBLISHED = {
    1_000: 4.5,
    5_000: 11.2,
    10_000: 21.2,
    20_000: 28.8,
    30_000: 32.6,
    50_000: 35.5,
    100_000: 36.4,
    None: 36.64,
}
"""Blocks of the pool -> percent of blocks hit: least recently used, whole prompts touched, tail first."""


@pytest.mark.skipif(not TRACE.exists(), reason="the recorded traces are not on this machine")
def test_the_published_curve(figure: Report) -> None:
    calls = block_calls(read_trace(TRACE))
    lines = []
    for capacity, percent in PUBLISHED.items():
        start = time.thread_time()
        point = replay(calls, capacity)
        spent = (time.thread_time() - start) / calls.blocks * 1e6
        lines.append(
            f"{capacity or 'no limit':>9} blocks: {point.hit_rate:.2%} (published {percent}%), {spent:.1f} µs a block"
        )
        name = f"{capacity:,} blocks" if capacity else "no limit"
        figure(f"cache, Mooncake conversation, {name}: hit rate", 100 * point.hit_rate, "%", f"{percent} (published)")
        assert round(point.hit_rate * 100, 2 if capacity is None else 1) == percent
    print("\n" + "\n".join(lines))  # noqa: T201 - a bench exists to print its figures
