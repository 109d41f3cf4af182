from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

from kernels.paged_decode import paged_decode
from kernels.paged_prefill import latent_prefill, paged_prefill
from kernels.twins import paged_attention as plain

Draw = Callable[..., torch.Tensor]
Near = Callable[[torch.Tensor, torch.Tensor], None]
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def lay_out(
    draw: Draw, dtype: torch.dtype, rows: list[int], cached: list[int], heads: int, widths: tuple[int, int], block: int
) -> Batch:  # fmt: skip
    """Keys, values, table, starts and lengths of requests with these new and earlier tokens."""
    lengths = [a + b for a, b in zip(rows, cached, strict=True)]
    per = max(1, -(-max(lengths) // block))
    pool = draw(len(rows) * per, block, 2, heads, max(widths), dtype=dtype)
    table = torch.randperm(len(rows) * per, generator=torch.Generator().manual_seed(3)).view(len(rows), per).int()
    starts = torch.tensor([0, *rows]).cumsum(0).int()
    keys, values = pool[:, :, 0, :, : widths[0]], pool[:, :, 1, :, : widths[1]]
    return keys, values, table, starts, torch.tensor(lengths).int()


@pytest.mark.parametrize(
    ("width", "value_width", "heads", "kv_heads", "block", "window", "dtype"),
    [
        (64, 64, 1, 1, 16, 0, torch.float32), (80, 80, 2, 1, 32, 7, torch.float32),
        (96, 96, 1, 1, 16, 64, torch.float32), (128, 128, 1, 1, 8, 0, torch.float32),
        (192, 128, 1, 1, 5, 100, torch.float32), (256, 256, 1, 1, 16, 0, torch.float32),
        (64, 64, 3, 1, 16, 0, torch.float16), (96, 96, 1, 1, 5, 7, torch.float16),
        (128, 128, 2, 2, 16, 64, torch.float16), (256, 256, 1, 1, 16, 0, torch.float16),
    ],
)  # fmt: skip
def test_fresh_chunked_and_prefixed_requests_equal_the_twin(
    width: int, value_width: int, heads: int, kv_heads: int, block: int, window: int, dtype: torch.dtype,
    draw: Draw, assert_near: Near,
) -> None:  # fmt: skip
    rows, cached = [1, 17, 66, 3], [0, 0, 16, 70]
    batch = lay_out(draw, dtype, rows, cached, kv_heads, (width, value_width), block)
    query, sinks = draw(sum(rows), heads, width, dtype=dtype), draw(heads) if window else None
    out, lse = paged_prefill(query, *batch, max(rows), width**-0.5, sinks, window)
    expected, expected_lse = plain.paged_prefill(query, *batch, width**-0.5, sinks, window)
    assert_near(out, expected)
    assert_near(lse, expected_lse)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("latent", "turned"), [(512, 64), (80, 16)])
def test_latent_keys_that_are_values_too(
    latent: int, turned: int, dtype: torch.dtype, draw: Draw, assert_near: Near
) -> None:
    width, rows, cached = latent + turned, [1, 33, 0], [20, 0, 5]
    pages, query = draw(9, 16, 1, width, dtype=dtype), draw(34, 3, width, dtype=dtype)[:, 1:]
    table = torch.tensor([[3, 1, 0], [8, 7, 2], [4, 5, 6]]).int()
    starts, lengths = torch.tensor([0, *rows]).cumsum(0).int(), torch.tensor([21, 33, 5]).int()
    assert lengths.tolist() == [a + b for a, b in zip(rows, cached, strict=True)]
    ours = latent_prefill(query, pages, table, starts, lengths, 33, 0.1, turned)
    expected = plain.paged_prefill(query, pages, pages[..., :latent], table, starts, lengths, 0.1)
    assert_near(ours[0], expected[0])
    assert_near(ours[1], expected[1])


def test_a_request_without_rows_leaves_the_others_alone(draw: Draw, assert_near: Near) -> None:
    batch = lay_out(draw, torch.float32, [5, 0, 4], [0, 9, 2], 1, (64, 64), 16)
    query = draw(9, 2, 64)
    assert_near(paged_prefill(query, *batch, 5, 0.1)[0], plain.paged_prefill(query, *batch, 0.1)[0])


def test_reads_pages_in_eight_bits(draw: Draw, assert_near: Near) -> None:
    keys, values, table, starts, lengths = lay_out(draw, torch.float32, [20], [11], 1, (64, 64), 16)
    rest = (table, starts, lengths)
    batch = (keys.to(torch.float8_e4m3fn), values.to(torch.float8_e4m3fn), *rest)
    query = draw(20, 2, 64)
    out = paged_prefill(query, *batch, 20, 0.1, scales=(2.0, 0.25))[0]
    assert_near(out, plain.paged_prefill(query, *batch, 0.1, scales=(2.0, 0.25))[0])


def test_the_last_row_is_what_decode_gives(draw: Draw, assert_near: Near) -> None:
    keys, values, table, starts, lengths = lay_out(draw, torch.float32, [9, 30], [40, 0], 2, (64, 64), 16)
    query = draw(39, 4, 64)
    out, lse = paged_prefill(query, keys, values, table, starts, lengths, 30, 0.125)
    last = starts[1:].long() - 1
    decoded, decoded_lse = paged_decode(query[last], keys, values, table, lengths, 0.125)
    assert_near(out[last], decoded)
    assert_near(lse[last], decoded_lse)


def test_refuses_what_does_not_fit(draw: Draw) -> None:
    batch = lay_out(draw, torch.float32, [5], [0], 2, (64, 64), 16)
    with pytest.raises(ValueError, match=r"Queries \(5, 3, 64\) do not fit"):
        paged_prefill(draw(5, 3, 64), *batch, 5, 1.0)
    with pytest.raises(ValueError, match="neighbours in memory"):
        paged_prefill(draw(5, 64, 2).transpose(1, 2), *batch, 5, 1.0)
    with pytest.raises(ValueError, match="latent pages"):
        latent_prefill(draw(5, 3, 64), batch[0], *batch[2:], 5, 1.0)
