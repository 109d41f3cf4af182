from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

from kernels.cpu import blocks
from kernels.linear import make_plain_linear
from kernels.quant_linear import make_quantized
from kernels.quant_matmul import quant_matmul
from kernels.quant_weights import QuantizedWeight, from_blocks
from kernels.twins import quant_matmul as plain

Draw = Callable[..., torch.Tensor]
Near = Callable[[torch.Tensor, torch.Tensor], None]
BITS = pytest.mark.parametrize("bits", [4, 8])


def rounded(weight: torch.Tensor, bits: int) -> QuantizedWeight:
    return from_blocks(blocks.quantize(weight, bits), weight.shape[1])


@BITS
@pytest.mark.parametrize(
    ("rows", "outputs", "inputs", "dtype"),
    [
        (1, 18, 544, torch.float32), (1, 9, 1050, torch.float16), (3, 70, 256, torch.float16),
        (33, 130, 96, torch.float32), (2, 16, 33, torch.float32), (0, 8, 32, torch.float32),
    ],
)  # fmt: skip
def test_equals_the_twin(
    rows: int, outputs: int, inputs: int, dtype: torch.dtype, bits: int, draw: Draw, assert_near: Near
) -> None:
    weight, x = rounded(draw(outputs, inputs), bits), draw(rows, inputs, dtype=dtype)
    out = quant_matmul(x, weight)
    assert out.shape == (rows, outputs)
    if rows:
        assert_near(out, plain.quant_matmul(x, weight))


def test_takes_rows_that_lie_apart(draw: Draw, assert_near: Near) -> None:
    weight, x = rounded(draw(40, 64), 4), draw(10, 200)[::3, 7:71]
    assert_near(quant_matmul(x, weight), plain.quant_matmul(x, weight))


@BITS
def test_weights_are_the_numbers_that_the_blocks_hold(bits: int, draw: Draw) -> None:
    """What the CPU's kernels and the rounded weights are, to the last bit."""
    kept = blocks.quantize(draw(6, 100), bits)
    weight = from_blocks(kept, 100)
    assert torch.equal(plain.dequantize(weight), blocks.dequantize(kept)[:, :100])
    assert weight.data.numel() == 6 * 128 * bits // 8


@BITS
@pytest.mark.parametrize("rows", [1, 5])
def test_a_product_is_that_of_the_rounded_dense_weight(bits: int, rows: int, draw: Draw, assert_near: Near) -> None:
    kept, bias, x = blocks.quantize(draw(20, 48), bits), draw(20), draw(rows, 48)
    dense = make_plain_linear(blocks.dequantize(kept)[:, :48], bias.half(), torch.float16, torch.device("cpu"))
    ours = make_quantized(kept, 48, bias, torch.float16, torch.device("cpu"))(x)
    assert ours.dtype == x.dtype
    assert_near(ours.half(), dense(x.half()))


def test_refuses_what_it_cannot_keep(draw: Draw) -> None:
    with pytest.raises(ValueError, match="63 columns do not fit"):
        quant_matmul(draw(2, 63), rounded(draw(2, 64), 4))
    with pytest.raises(ValueError, match="Q8_0 blocks of 64 columns cannot be taken as 65 inputs"):
        from_blocks(blocks.quantize(draw(2, 64), 8), 65)
    other = blocks.Blocks(blocks.Kind.Q4_0, np.zeros((2, blocks.BYTES[blocks.Kind.Q4_0]), dtype=np.uint8))
    with pytest.raises(ValueError, match="Q4_0 blocks of 32 columns"):
        from_blocks(other, 32)
