"""A product of the engine whose weights stay in eight or four bits on the device. Satisfies ``linear.Linear``."""

from __future__ import annotations

import torch

from .cpu.blocks import Blocks
from .quant_matmul import quant_matmul
from .quant_weights import QuantizedWeight, from_blocks


class QuantLinear:
    """``x W^T + b``; activations are cast to ``dtype`` and the result back, as a dense weight of that type does it."""

    def __init__(self, weight: QuantizedWeight, bias: torch.Tensor | None, dtype: torch.dtype) -> None:
        self._weight, self._bias, self._dtype = weight, bias, dtype

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        product = quant_matmul(x.to(self._dtype), self._weight)
        return (product if self._bias is None else product + self._bias).to(x.dtype)


def make_quantized(
    blocks: Blocks, inputs: int, bias: torch.Tensor | None, dtype: torch.dtype, device: torch.device
) -> QuantLinear:
    """``ops.Ops.make_quantized``."""
    return QuantLinear(from_blocks(blocks, inputs).to(device), None if bias is None else bias.to(device, dtype), dtype)
