from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.swiglu import swiglu
from kernels.twins import rms_norm as plain_norm
from kernels.twins import swiglu as plain_swiglu

Draw = Callable[..., torch.Tensor]
Near = Callable[[torch.Tensor, torch.Tensor], None]
BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.float16])


@BOTH
@pytest.mark.parametrize("shape", [(1, 1), (1, 64), (7, 80), (3, 5, 96), (2, 576), (2, 4097), (0, 64)])
def test_norm_equals_the_twin(shape: tuple[int, ...], dtype: torch.dtype, draw: Draw, assert_near: Near) -> None:
    x, weight = draw(*shape, dtype=dtype), draw(shape[-1], dtype=dtype)
    if x.numel():
        assert_near(rms_norm(x, weight, 1e-5), plain_norm.rms_norm(x, weight, 1e-5))
    assert rms_norm(x, weight, 1e-5).shape == shape


@BOTH
def test_norm_with_residual_equals_the_twin(dtype: torch.dtype, draw: Draw, assert_near: Near) -> None:
    x, residual, weight = draw(9, 130, dtype=dtype), 5 * draw(9, 130, dtype=dtype), draw(130, dtype=dtype)
    out, total = add_rms_norm(x, residual, weight, 1e-6)
    expected, expected_total = plain_norm.add_rms_norm(x, residual, weight, 1e-6)
    assert_near(out, expected)
    assert torch.equal(total, expected_total)


def test_norm_of_rows_that_lie_apart(draw: Draw, assert_near: Near) -> None:
    wide = draw(6, 200)
    assert_near(rms_norm(wide[::2, :96], wide[0, :96], 1e-5), plain_norm.rms_norm(wide[::2, :96], wide[0, :96], 1e-5))
    turned = draw(64, 5).T
    assert_near(rms_norm(turned, wide[0, :64], 1e-5), plain_norm.rms_norm(turned, wide[0, :64], 1e-5))


def test_norm_keeps_eps_where_a_row_is_zero() -> None:
    assert torch.equal(rms_norm(torch.zeros(2, 64), torch.ones(64), 1e-5), torch.zeros(2, 64))


def test_norm_refuses_what_does_not_fit(draw: Draw) -> None:
    with pytest.raises(ValueError, match="does not fit rows of 64"):
        rms_norm(draw(2, 64), draw(63), 1e-5)
    with pytest.raises(ValueError, match="residual of shape"):
        add_rms_norm(draw(2, 64), draw(3, 64), draw(64), 1e-5)


@BOTH
@pytest.mark.parametrize("shape", [(1, 2), (3, 160), (2, 3, 2050), (0, 8)])
def test_swiglu_equals_the_twin(shape: tuple[int, ...], dtype: torch.dtype, draw: Draw, assert_near: Near) -> None:
    pair = 3 * draw(*shape, dtype=dtype)
    if pair.numel():
        assert_near(swiglu(pair), plain_swiglu.swiglu(pair))
    assert swiglu(pair).shape == (*shape[:-1], shape[-1] // 2)


def test_swiglu_of_a_slice_and_of_large_gates(draw: Draw, assert_near: Near) -> None:
    pair = draw(4, 300)[:, 100:228]
    assert_near(swiglu(pair), plain_swiglu.swiglu(pair))
    torch.testing.assert_close(swiglu(torch.tensor([[-80.0, 200.0, 1.0, 1.0]])), torch.tensor([[0.0, 200.0]]))


def test_swiglu_refuses_an_odd_width(draw: Draw) -> None:
    with pytest.raises(ValueError, match="even number of columns, not 7"):
        swiglu(draw(2, 7))
