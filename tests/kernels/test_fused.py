"""The operators in few calls equal their plain twins, on any shape."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import fused, reference
from kernels.pages import Pages, Span, length_groups, plan_pages

CPU = torch.device("cpu")
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])


@st.composite
def batches(draw: st.DrawFn) -> tuple[Pages, int, int]:
    """Spans over scattered blocks, in a pool of ``blocks`` blocks of ``block_tokens``."""
    block_tokens = draw(st.integers(1, 9))
    sizes = draw(st.lists(st.tuples(st.integers(0, 60), st.sampled_from([1, 1, 1, 2, 7, 20])), min_size=1, max_size=7))
    needed = [-(-(start + count) // block_tokens) + draw(st.integers(0, 2)) for start, count in sizes]
    blocks = draw(st.permutations(range(sum(needed) + 1)))
    spans, row, used = [], 0, 0
    for (start, count), width in zip(sizes, needed, strict=True):
        spans.append(Span(row, start, count, blocks[used : used + width]))
        row, used = row + count, used + width
    return plan_pages(spans, block_tokens, CPU), len(blocks), block_tokens


@settings(max_examples=40, deadline=None)
@given(batch=batches(), kv_heads=st.integers(1, 3), group=st.integers(1, 3), pool_dtype=DTYPES, seed=st.integers(0, 99))
def test_attention_and_its_store(
    batch: tuple[Pages, int, int], kv_heads: int, group: int, pool_dtype: torch.dtype, seed: int
) -> None:
    pages, blocks, block_tokens = batch
    torch.manual_seed(seed)
    rows, head_dim = len(pages.slots), 8
    pool = torch.randn(blocks, block_tokens, 2, kv_heads, head_dim).to(pool_dtype)
    twin = pool.clone()
    kv = torch.randn(rows, 2, kv_heads, head_dim)
    fused.store_kv(pool, kv, pages)
    reference.store_kv(twin, kv, pages)
    assert torch.equal(pool, twin)
    query = torch.randn(rows, kv_heads * group, head_dim)
    got, wanted = fused.attention(query, pool, pages), reference.attention(query, pool, pages)
    assert got.shape == wanted.shape
    assert (got - wanted).abs().max() < 2e-5


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 5), width=st.integers(1, 40), eps=st.sampled_from([1e-6, 1e-5, 0.5]), dtype=DTYPES)
def test_norms_and_activations(rows: int, width: int, eps: float, dtype: torch.dtype) -> None:
    x, weight = torch.randn(rows, width).to(dtype), torch.randn(width).to(dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    norm = reference.rms_norm(x, weight, eps)
    torch.testing.assert_close(fused.rms_norm(x, weight, eps), norm, rtol=tolerance, atol=tolerance)
    gate_up = torch.randn(rows, 2 * width).to(dtype)
    torch.testing.assert_close(fused.swiglu(gate_up), reference.swiglu(gate_up), rtol=tolerance, atol=tolerance)


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 5), heads=st.integers(1, 4), half=st.integers(1, 8))
def test_rotation(rows: int, heads: int, half: int) -> None:
    x, angles = torch.randn(rows, heads, 2 * half), torch.randn(rows, 1, half) * 10
    cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([-angles.sin(), angles.sin()], -1)
    wanted = reference.rope(x, cos, sin)
    torch.testing.assert_close(fused.rope(x, cos, sin), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(wanted.norm(dim=-1), x.norm(dim=-1))  # a rotation keeps lengths
    pair = torch.view_as_complex(torch.stack([x[..., :half], x[..., half:]], -1)) * torch.polar(torch.ones(()), angles)
    torch.testing.assert_close(wanted, torch.cat([pair.real, pair.imag], -1), rtol=1e-5, atol=1e-5)


def test_a_norm_by_hand() -> None:
    x = torch.tensor([[3.0, 4.0]])
    assert reference.rms_norm(x, torch.tensor([1.0, 2.0]), 0.0).tolist() == [
        pytest.approx([3 / 12.5**0.5, 8 / 12.5**0.5])
    ]


def test_attention_by_hand() -> None:
    """Equal keys: a token's output is the mean of the values it may see, its own included."""
    pages = plan_pages([Span(0, 2, 2, [1, 0])], 2, CPU)
    pool = torch.zeros(2, 2, 2, 1, 2)
    pool.view(4, 2, 1, 2)[:, 1, 0, 0] = torch.tensor([30.0, 40.0, 10.0, 20.0])  # block 1 comes first
    for attention in (reference.attention, fused.attention):
        assert attention(torch.randn(2, 1, 2), pool, pages)[:, 0, 0].tolist() == pytest.approx([20.0, 25.0])


@given(
    lengths=st.lists(st.integers(1, 5000), min_size=1, max_size=40),
    block_tokens=st.integers(1, 64),
)
def test_groups_hold_everybody_once_and_pad_little(lengths: list[int], block_tokens: int) -> None:
    spans = [Span(row, length - 1, 1, []) for row, length in enumerate(lengths)]
    groups = length_groups(spans, block_tokens)
    assert sorted(span.row for group in groups for span in group) == list(range(len(lengths)))
    for group in groups:
        widths = [-(-span.stop // block_tokens) for span in group]
        assert max(widths) <= 2 * min(widths) + 4
    assert len(groups) <= 11  # doubling from 1 to 5000


def test_nothing_is_grouped_of_nothing() -> None:
    assert length_groups([], 16) == []
