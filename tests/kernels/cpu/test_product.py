"""Products of every variant equal the twin's, whatever the number of rows, tokens and threads."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import gguf
import pytest
import torch

from kernels.cpu import twin
from kernels.cpu.blocks import Blocks, Kind, quantize
from kernels.cpu.speed import measure

if TYPE_CHECKING:
    from tests.kernels.cpu.conftest import Multiplier


def weight_of(kind: Kind, rows: int, width: int) -> Blocks:
    values = torch.randn(rows, width, generator=torch.Generator().manual_seed(rows))
    if kind is Kind.Q4_0:
        padded = torch.nn.functional.pad(values, (0, -width % 32)).numpy()
        return Blocks(kind, gguf.quants.quantize(padded, gguf.GGMLQuantizationType.Q4_0))
    return quantize(values, 8 if kind is Kind.Q8_0 else 4)


def near(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool((found - wanted).abs().max() <= 2e-6 * wanted.abs().max() + 1e-5)


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize(("rows", "width"), [(16, 32), (40, 96), (129, 112), (5, 33)])
def test_equal_to_the_twin(multiplier: Multiplier, kind: Kind, rows: int, width: int) -> None:
    weight = weight_of(kind, rows, width)
    for tokens in (1, 2, 3, 4, 5, 9, 66):
        x = 3 * torch.randn(tokens, width, generator=torch.Generator().manual_seed(tokens))
        assert near(multiplier(weight, x), twin.multiply(weight, x)), f"{tokens} tokens"


def test_a_bias_is_added(multiplier: Multiplier) -> None:
    weight, bias = weight_of(Kind.Q8_0, 20, 64), torch.arange(20.0)
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    assert near(multiplier(weight, x, bias), twin.multiply(weight, x, bias))


@pytest.mark.parametrize("kind", list(Kind))
def test_the_largest_codes_do_not_overflow(multiplier: Multiplier, kind: Kind) -> None:
    weight = weight_of(kind, 16, 64)
    width = weight.data.shape[1] // 2
    data = weight.data.reshape(16, 2, width).copy()
    header = 4 if kind is Kind.Q4_1 else 2
    for byte in (0xFF, 0x80, 0x7F, 0x00):
        data[..., header:] = byte
        extreme = Blocks(kind, data.reshape(16, -1))
        for x in (torch.full((5, 64), 7.0), torch.full((5, 64), -7.0)):
            assert near(multiplier(extreme, x), twin.multiply(extreme, x)), hex(byte)


def test_zeros_and_tiny_activations(multiplier: Multiplier) -> None:
    weight = weight_of(Kind.Q4_1, 16, 64)
    assert not multiplier(weight, torch.zeros(2, 64)).any()
    x = torch.full((1, 64), 1e-20)
    assert torch.allclose(multiplier(weight, x), twin.multiply(weight, x), rtol=1e-4, atol=0)


def test_more_threads_than_cores_give_the_same_bits(native: ctypes.CDLL, multiplier: Multiplier) -> None:
    """Threads that lag behind or come late must neither repeat nor skip a piece."""
    weight = weight_of(Kind.Q4_1, 500, 64)
    x = torch.randn(70, 64, generator=torch.Generator().manual_seed(1))
    wanted = multiplier(weight, x)
    multiplier.threads = 7
    for _ in range(40):
        assert torch.equal(multiplier(weight, x), wanted)


def test_activations_are_rounded_as_the_twin_says() -> None:
    x = torch.tensor([[0.0, 1.0, -127.0, 126.5, 2.5, 3.5] + [0.0] * 26])
    codes, scales = twin.rounded_activations(x)
    assert scales.item() == 1.0
    assert codes[0, 0, :6].tolist() == [0, 1, -127, 126, 2, 4], "ties go to even"


def test_measured_limits_are_plausible(native: ctypes.CDLL) -> None:
    for threads in (1, 2):
        found = measure(native, threads, 0.01, read_bytes=1 << 22)
        assert found.read > 1e8
        assert found.operations > 1e8


def test_a_measurement_that_fails_is_an_error(native: ctypes.CDLL) -> None:
    with pytest.raises(MemoryError, match="out of memory"):
        measure(native, 1, 0.01, read_bytes=1 << 60)
