from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

from kernels.merge_states import merge_states
from kernels.paged_decode import DecodeOptions, mla_decode, paged_decode
from kernels.twins import paged_attention as plain

Draw = Callable[..., torch.Tensor]
Near = Callable[[torch.Tensor, torch.Tensor], None]
BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.float16])


@dataclass
class Pool:
    keys: torch.Tensor
    values: torch.Tensor
    table: torch.Tensor
    lengths: torch.Tensor


def fill(draw: Draw, dtype: torch.dtype, lengths: list[int], heads: int, widths: tuple[int, int], block: int) -> Pool:
    """Keys and values side by side as the engine keeps them (so neither is contiguous), blocks in no order."""
    per = max(1, -(-max(lengths) // block))
    pool = draw(len(lengths) * per, block, 2, heads, max(widths), dtype=dtype)
    table = torch.randperm(len(lengths) * per, generator=torch.Generator().manual_seed(3)).view(len(lengths), per).int()
    keys, values = pool[:, :, 0, :, : widths[0]], pool[:, :, 1, :, : widths[1]]
    return Pool(keys, values, table, torch.tensor(lengths, dtype=torch.int32))


def assert_equal_states(
    ours: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor], near: Near
) -> None:
    near(ours[0], expected[0])
    near(ours[1], expected[1])


@BOTH
@pytest.mark.parametrize(
    ("width", "value_width", "heads", "kv_heads", "block"),
    [
        (64, 64, 2, 2, 16), (80, 80, 6, 2, 16), (96, 96, 5, 1, 32), (128, 128, 16, 1, 8), (192, 128, 4, 1, 5),
        (256, 256, 2, 1, 16),
    ],
)  # fmt: skip
def test_equals_the_twin(
    width: int, value_width: int, heads: int, kv_heads: int, block: int, dtype: torch.dtype,
    draw: Draw, assert_near: Near,
) -> None:  # fmt: skip
    pool = fill(draw, dtype, [1, 0, block, block + 1, 70], kv_heads, (width, value_width), block)
    query = draw(5, heads, width, dtype=dtype)
    ours = paged_decode(query, pool.keys, pool.values, pool.table, pool.lengths, width**-0.5)
    expected = plain.paged_decode(query, pool.keys, pool.values, pool.table, pool.lengths, width**-0.5)
    assert_equal_states(ours, expected, assert_near)


@pytest.mark.parametrize(
    ("window", "parts", "dtype"),
    [
        (0, 5, torch.float32), (1, 1, torch.float32), (1, 2, torch.float16), (16, 2, torch.float32),
        (33, 5, torch.float16), (33, 1, torch.float32), (1000, 2, torch.float32), (0, 1, torch.float16),
    ],
)  # fmt: skip
def test_windows_and_sinks_survive_cutting(
    window: int, parts: int, dtype: torch.dtype, draw: Draw, assert_near: Near
) -> None:
    pool = fill(draw, dtype, [0, 3, 64, 99], 1, (64, 64), 16)
    query, sinks = draw(4, 3, 64, dtype=dtype), draw(3)
    options = DecodeOptions(window=window, parts=parts)
    ours = paged_decode(query, pool.keys, pool.values, pool.table, pool.lengths, 0.125, sinks, options)
    expected = plain.paged_decode(query, pool.keys, pool.values, pool.table, pool.lengths, 0.125, sinks, window)
    assert_equal_states(ours, expected, assert_near)


def test_scores_far_from_zero_do_not_overflow(draw: Draw, assert_near: Near) -> None:
    pool = fill(draw, torch.float32, [50, 90], 1, (64, 64), 16)
    query = 100 * draw(2, 2, 64)
    options = DecodeOptions(parts=3)
    ours = paged_decode(query, pool.keys, pool.values, pool.table, pool.lengths, 1.0, None, options)
    assert_equal_states(
        ours, plain.paged_decode(query, pool.keys, pool.values, pool.table, pool.lengths, 1.0), assert_near
    )


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz])
def test_reads_pages_in_eight_bits(kind: torch.dtype, draw: Draw, assert_near: Near) -> None:
    pool = fill(draw, torch.float32, [1, 40], 2, (64, 64), 16)
    keys, values, query = pool.keys.to(kind), pool.values.to(kind), draw(2, 4, 64)
    options = DecodeOptions(key_scale=0.5, value_scale=3.0)
    ours = paged_decode(query, keys, values, pool.table, pool.lengths, 0.125, None, options)
    expected = plain.paged_decode(query, keys, values, pool.table, pool.lengths, 0.125, None, 0, 0.5, 3.0)
    assert_equal_states(ours, expected, assert_near)


def test_never_reads_pages_beyond_the_length(draw: Draw, assert_near: Near) -> None:
    pool = fill(draw, torch.float32, [17, 64], 1, (64, 64), 16)
    expected = plain.paged_decode(query := draw(2, 2, 64), pool.keys, pool.values, pool.table, pool.lengths, 0.125)
    pool.keys[pool.table[0, 2:].long()] = torch.nan
    pool.values[pool.table[0, 1].long(), 1:] = torch.nan
    pool.table[0, 2:] = -(1 << 30)
    assert_equal_states(
        paged_decode(query, pool.keys, pool.values, pool.table, pool.lengths, 0.125), expected, assert_near
    )


def test_shards_of_the_keys_merge_to_the_whole(draw: Draw, assert_near: Near) -> None:
    pool = fill(draw, torch.float32, [96], 1, (64, 64), 16)
    query = draw(1, 2, 64)
    shards = [
        paged_decode(query, pool.keys, pool.values, pool.table[:, first:last], torch.tensor([n]).int(), 0.125)
        for first, last, n in ((0, 2, 32), (2, 6, 64), (0, 2, 0))
    ]
    merged = merge_states(torch.stack([s[0] for s in shards]), torch.stack([s[1] for s in shards]))
    assert_equal_states(
        merged, plain.paged_decode(query, pool.keys, pool.values, pool.table, pool.lengths, 0.125), assert_near
    )


@BOTH
@pytest.mark.parametrize(("heads", "parts"), [(1, 1), (16, 2), (20, 1)])
def test_latent_attention_equals_the_twin(
    heads: int, parts: int, dtype: torch.dtype, draw: Draw, assert_near: Near
) -> None:
    pages, query = draw(10, 16, 1, 576, dtype=dtype), draw(2, heads, 576, dtype=dtype)
    table = torch.tensor([[3, 1, 0, 9, 7], [2, 4, 6, 8, 5]]).int()
    lengths = torch.tensor([1, 71]).int()
    ours = mla_decode(query, pages, table, lengths, 192**-0.5, options=DecodeOptions(parts=parts))
    assert_equal_states(ours, plain.mla_decode(query, pages, table, lengths, 192**-0.5), assert_near)


def test_refuses_what_does_not_fit(draw: Draw) -> None:
    pool = fill(draw, torch.float32, [5], 2, (64, 64), 16)
    with pytest.raises(ValueError, match=r"Queries \(1, 3, 64\) do not fit"):
        paged_decode(draw(1, 3, 64), pool.keys, pool.values, pool.table, pool.lengths, 1.0)
    with pytest.raises(ValueError, match="latent pages"):
        mla_decode(draw(1, 3, 64), pool.keys, pool.table, pool.lengths, 1.0)
    with pytest.raises(ValueError, match="neighbours in memory"):
        paged_decode(draw(1, 64, 2).transpose(1, 2), pool.keys, pool.values, pool.table, pool.lengths, 1.0)
