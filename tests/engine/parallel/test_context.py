"""Attention over interleaved shards equals attention over the whole, wherever it is cut; shards may be empty."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.parallel.context import split_context
from engine.parallel.ports import Alone, Collective
from kernels.dispatch import FUSED, REFERENCE
from kernels.ops import Style
from kernels.pages import Pages, Span

if TYPE_CHECKING:
    from tests.engine.parallel.conftest import Ranks

CPU = torch.device("cpu")
BLOCK, DIM, HEADS = 4, 6, 2
"""``HEADS`` query heads a rank, one key head that all ranks have."""


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request: pytest.FixtureRequest, make_ranks: Callable[..., Ranks]) -> Ranks:
    return make_ranks("shared", request.param, slot_bytes=1 << 14)


def spans_of(lengths: list[int], counts: list[int], block: int) -> list[Span]:
    """Requests of these lengths, of which the last ``counts`` positions are computed now; blocks in disorder."""
    spans, row, first = [], 0, 1
    for length, count in zip(lengths, counts, strict=True):
        blocks = list(range(first, first + -(-length // block)))[::-1]
        first += len(blocks)
        spans.append(Span(row, length - count, count, blocks))
        row += count
    return spans


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    fresh=st.lists(st.integers(1, 40), min_size=5, max_size=5),
    seed=st.integers(0, 2**31),
    window=st.sampled_from([0, 0, 3, 17]),
    sinks=st.booleans(),
    latent=st.booleans(),
)
def test_shards_give_what_the_whole_gives(
    ranks: Ranks, lengths: list[int], fresh: list[int], seed: int, window: int, sinks: bool, latent: bool
) -> None:
    counts = [min(length, 1 if n % 2 else fresh[n]) for n, length in enumerate(lengths)]
    random = torch.Generator().manual_seed(seed)
    sizes = ([length - count for length, count in zip(lengths, counts, strict=True)], counts)
    kinds = (1,) if latent else (2, 1)
    width = 4 if latent else 0

    def draw(rows: int, *shape: int) -> torch.Tensor:
        return torch.randn((rows, *shape), generator=random)

    heads = HEADS * ranks.size
    query = draw(sum(counts), heads, DIM)
    steps = [[draw(size, *kinds, DIM) for size in part] for part in sizes]  # what was computed before, and now
    sink = draw(heads) if sinks and not latent else None

    def compute(context: Collective, ops_name: str) -> torch.Tensor:
        """The earlier positions are stored in a step of their own, then the newest are computed over all."""
        block = BLOCK * ranks.size // context.size
        ops = split_context(FUSED if ops_name == "torch" else REFERENCE, context, CPU)
        pool = torch.full((60, block, *kinds, DIM), 7.0)
        before = [(length - count, count) for length, count in zip(lengths, counts, strict=True)]
        spans = spans_of(lengths, counts, BLOCK * ranks.size)
        row, old = 0, []
        for span, (start, _) in zip(spans, before, strict=True):
            if start:
                old.append(Span(row, 0, start, span.blocks))
                row += start
        if old:
            ops.store_kv(pool, torch.cat(steps[0]), Pages(old, block, CPU))
        pages = Pages(spans, block, CPU)
        ops.store_kv(pool, torch.cat(steps[1]), pages)
        mine = slice(context.rank * heads // context.size, (context.rank + 1) * heads // context.size)
        if latent:
            return ops.latent_attention(query[:, mine], pool, pages, width, 0.4)
        style = Style(scale=0.4, window=window, sinks=None if sink is None else sink[mine])
        return ops.attention(query[:, mine].contiguous(), pool, pages, style)

    wanted = compute(Alone(), "reference")
    parts = ranks.together(lambda context: compute(context, "torch"))
    assert (torch.cat(parts, dim=1) - wanted).abs().max() < 1e-5


@pytest.mark.parametrize("start", [0, 2])
def test_turned_keys_lie_where_their_positions_belong(ranks: Ranks, start: int) -> None:
    """Rank ``r`` holds positions r, r + size, ...; the query is turned everywhere."""
    rows = 3 * ranks.size + 1
    key, value, query = (torch.randn(rows, 1, DIM) for _ in range(3))
    angle = torch.randn(rows, 1, (DIM - start) // 2)
    cos = torch.cat((angle.cos(), angle.cos()), -1)
    sin = torch.cat((-angle.sin(), angle.sin()), -1)
    whole = torch.zeros(9, BLOCK, 2, 1, DIM)
    pages = Pages([Span(0, 0, rows, range(9))], BLOCK, CPU)
    turned = FUSED.rope_store(query, key, value, cos, sin, whole, pages, start)
    flat = whole.flatten(0, 1)

    def store(context: Collective) -> tuple[torch.Tensor, torch.Tensor]:
        pool = torch.zeros(9, BLOCK, 2, 1, DIM)
        ops = split_context(FUSED, context, CPU)
        return ops.rope_store(query, key, value, cos, sin, pool, pages, start), pool.flatten(0, 1)

    for rank, (own, pool) in enumerate(ranks.together(store)):
        assert torch.equal(own, turned)
        held = flat[rank : rows : ranks.size]
        assert torch.equal(pool[: len(held)], held)
        assert not pool[len(held) :].any()


def test_one_rank_changes_nothing() -> None:
    assert split_context(FUSED, Alone(), CPU) is FUSED
