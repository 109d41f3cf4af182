"""Products with constant weights: every form gives the same numbers."""

from __future__ import annotations

import pytest
import torch

from kernels import linear
from kernels.linear import DenseLinear, PackedFloatLinear, PackedHalfLinear, PlainLinear, make_linear, make_plain_linear

CPU = torch.device("cpu")
needs_packed = pytest.mark.skipif(not linear.has_packed_half(), reason="FBGEMM's float16 product needs AVX2")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 5, 16, 33])
def test_the_fast_form_equals_the_plain_one(dtype: torch.dtype, bias: bool, rows: int) -> None:
    torch.manual_seed(rows)
    weight, offset, x = torch.randn(70, 130), torch.randn(70) if bias else None, torch.randn(rows, 130)
    fast, plain = make_linear(weight, offset, dtype, CPU), make_plain_linear(weight, offset, dtype, CPU)
    # Where bfloat16 is native, activations are rounded to it as well.
    tolerance = 0.3 if isinstance(fast, DenseLinear) and dtype != torch.float32 else 2e-3
    assert (fast(x) - plain(x)).abs().max() < tolerance
    exact = x @ weight.T + (0 if offset is None else offset)
    assert (plain(x) - exact).abs().max() < (1e-4 if dtype == torch.float32 else 0.5)


@needs_packed
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_two_byte_weight_is_packed_where_that_is_faster(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(linear, "has_native_bfloat16", lambda: False)
    assert isinstance(make_linear(torch.randn(8, 8), None, dtype, CPU), PackedHalfLinear)


@pytest.mark.skipif(not linear.has_onednn(), reason="this torch is built without oneDNN")
def test_a_four_byte_weight_is_packed_too() -> None:
    assert isinstance(make_linear(torch.randn(8, 8), None, torch.float32, CPU), PackedFloatLinear)


def test_native_bfloat16_stays_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "has_native_bfloat16", lambda: True)
    assert isinstance(make_linear(torch.randn(8, 8), None, torch.bfloat16, CPU), DenseLinear)


def test_a_weight_too_large_for_half_precision_stays_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "has_native_bfloat16", lambda: False)
    weight = torch.tensor([[1e6, 1.0]])
    made = make_linear(weight, None, torch.bfloat16, CPU)
    assert isinstance(made, DenseLinear)
    assert made(torch.tensor([[1.0, 0.0]])).item() == pytest.approx(1e6, rel=1e-2)


@needs_packed
def test_bfloat16_weights_are_exact_in_the_packed_form() -> None:
    """The pack holds bfloat16's own values: small ones too, up to 3e-8."""
    weight = (torch.randn(64, 64) * torch.logspace(-7, 4, 64)).bfloat16()
    one = torch.eye(64)
    got = PackedHalfLinear(weight, None)(one).T
    assert (got - weight.float()).abs().max() <= 3e-8
    large = weight.float().abs() >= 6.2e-5
    assert torch.equal(got[large], weight.float()[large])


def test_results_have_the_activations_type() -> None:
    for kind in (DenseLinear, PlainLinear):
        assert kind(torch.randn(4, 4).bfloat16(), None)(torch.randn(2, 4)).dtype is torch.float32
