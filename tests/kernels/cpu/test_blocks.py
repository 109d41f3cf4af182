"""Groups of 32: the formats are GGUF's, and rounding is as good as the bits allow."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from kernels.cpu.blocks import Blocks, Kind, codes_of, dequantize, joined, quantize

TYPES = {
    Kind.Q4_0: gguf.GGMLQuantizationType.Q4_0,
    Kind.Q4_1: gguf.GGMLQuantizationType.Q4_1,
    Kind.Q8_0: gguf.GGMLQuantizationType.Q8_0,
}


def normal(rows: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", list(Kind))
def test_groups_mean_what_gguf_says(kind: Kind) -> None:
    data = gguf.quants.quantize(normal(7, 96).numpy(), TYPES[kind])
    ours = dequantize(Blocks(kind, data))
    assert torch.equal(ours, torch.from_numpy(gguf.quants.dequantize(data, TYPES[kind])))


@pytest.mark.parametrize("bits", [4, 8])
def test_a_code_is_a_whole_number_in_its_range(bits: int) -> None:
    codes, _, _ = codes_of(quantize(normal(5, 64), bits))
    assert codes.min() >= 0
    assert codes.max() < 1 << bits
    assert torch.equal(codes, codes.round())


def test_rounding_errors_are_those_of_the_bits() -> None:
    weight = normal(64, 256)
    eight, four = (dequantize(quantize(weight, bits)) - weight for bits in (8, 4))
    assert eight.square().mean().sqrt() < 0.01
    assert four.square().mean().sqrt() < 0.09
    plain = torch.from_numpy(
        gguf.quants.dequantize(gguf.quants.quantize(weight.numpy(), TYPES[Kind.Q4_1]), TYPES[Kind.Q4_1])
    )
    assert four.square().sum() < 0.9 * (plain - weight).square().sum(), "clipping and fitting must pay"


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("value", [0.0, 3.5, -1e-7])
def test_a_group_of_equals_stays_nearly_equal(bits: int, value: float) -> None:
    found = dequantize(quantize(torch.full((2, 64), value), bits))
    assert torch.allclose(found, torch.full((2, 64), value), atol=1e-6, rtol=5e-3)


@pytest.mark.parametrize("bits", [4, 8])
def test_rows_are_filled_up_with_zeros_that_change_nothing(bits: int) -> None:
    weight = normal(3, 80)
    blocks = quantize(weight, bits)
    assert blocks.width == 96
    assert (dequantize(blocks)[:, :80] - weight).abs().max() < (0.35 if bits == 4 else 0.03)


def test_large_matrices_are_rounded_piece_by_piece_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = normal(10, 64)
    whole = quantize(weight, 4).data
    monkeypatch.setattr("kernels.cpu.blocks._AT_ONCE", 192)
    assert np.array_equal(quantize(weight, 4).data, whole)


def test_other_numbers_of_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="4 or 8 bits, not 5"):
        quantize(normal(1, 32), 5)


def test_rows_of_one_format_are_joined_and_others_refused() -> None:
    first, second = quantize(normal(2, 32), 8), quantize(normal(3, 32, 1), 8)
    assert torch.equal(dequantize(joined([first, second])), torch.cat([dequantize(first), dequantize(second)]))
    with pytest.raises(ValueError, match="different formats"):
        joined([first, quantize(normal(2, 32), 4)])
