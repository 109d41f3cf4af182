"""What the service says of its settings when it starts."""

from __future__ import annotations

import pytest

from energyopt.compose.service import describe_prefix_cache, describe_ranks
from energyopt.core.config import ParallelLayout
from engine.ports import EngineStats


@pytest.mark.parametrize(
    ("unit", "interval", "words"),
    [
        (None, 0, "prefix cache off"),
        (16, 0, "hits from 16 tokens on, in steps of as many; states and windows are kept at reachable boundaries"),
        (4096, 32768, "hits from 4096 tokens on, in steps of as many; states and windows are also kept every 32768"),
        (256, None, "every state and window is kept"),
    ],
)
def test_the_effective_prefix_cache_is_described(unit: int | None, interval: int | None, words: str) -> None:
    """vllm-ascend#13750 and #16270: a shortest hit of 4,096 tokens that nobody was told of."""
    assert words in describe_prefix_cache(EngineStats(min_hit_tokens=unit, retention_interval=interval))


def test_the_log_names_the_layout_where_there_are_ranks() -> None:
    assert describe_ranks(ParallelLayout()) == []
    assert describe_ranks(ParallelLayout(tp=4, pp=2, dcp=2)) == ["layout tp=4 pp=2 dcp=2: 8 ranks, one process each"]
