from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="the kernels need triton")

from kernels.quant_matmul import quant_matmul
from kernels.quant_weights import pack, quantize, unpack
from kernels.twins import quant_matmul as plain

Draw = Callable[..., torch.Tensor]
Near = Callable[[torch.Tensor, torch.Tensor], None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("rows", "outputs", "inputs", "group"),
    [(1, 70, 512, 64), (1, 9, 1056, 32), (3, 70, 256, 128), (33, 130, 96, 32), (2, 16, 64, 64), (0, 8, 32, 32)],
)
def test_equals_the_twin(
    rows: int, outputs: int, inputs: int, group: int, bits: int, dtype: torch.dtype, draw: Draw, assert_near: Near
) -> None:
    weight, x = quantize(draw(outputs, inputs), bits, group), draw(rows, inputs, dtype=dtype)
    out = quant_matmul(x, weight)
    assert out.shape == (rows, outputs)
    if rows:
        assert_near(out, plain.quant_matmul(x, weight))


def test_takes_rows_that_lie_apart(draw: Draw, assert_near: Near) -> None:
    weight, x = quantize(draw(40, 64), 4, 32), draw(10, 200)[::3, 7:71]
    assert_near(quant_matmul(x, weight), plain.quant_matmul(x, weight))


@pytest.mark.parametrize("bits", [4, 8])
def test_rounds_to_at_most_half_a_step(bits: int, draw: Draw) -> None:
    weight = draw(6, 128)
    kept = quantize(weight, bits, 32)
    error = (plain.dequantize(kept) - weight).abs().view(6, 4, 32)
    assert (error <= kept.scales[..., None] * 0.5001).all()
    assert kept.data.numel() == 6 * 128 * bits // 8


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(outputs=st.integers(1, 4), groups=st.integers(1, 4), group=st.sampled_from([32, 64]), seed=st.integers(0, 9999))
def test_unpacking_undoes_packing(outputs: int, groups: int, group: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randint(-8, 8, (outputs, groups, group), generator=generator, dtype=torch.int8)
    assert torch.equal(unpack(pack(weights), group), weights)


def test_refuses_what_it_cannot_keep(draw: Draw) -> None:
    with pytest.raises(ValueError, match="4 or 8 bits, not 5"):
        quantize(draw(2, 64), 5, 32)
    for group in (16, 48, 128):
        with pytest.raises(ValueError, match=f"{group} is not"):
            quantize(draw(2, 64), 4, group)
    with pytest.raises(ValueError, match="63 columns"):
        quant_matmul(draw(2, 63), quantize(draw(2, 64), 4, 32))
