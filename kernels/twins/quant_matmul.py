"""Plain form of ``kernels.quant_matmul``."""

from __future__ import annotations

import torch

from ..quant_weights import QuantizedWeight, unpack


def dequantize(weight: QuantizedWeight) -> torch.Tensor:
    """The weights as (outputs, inputs) float32."""
    grouped = (
        unpack(weight.data, weight.group) if weight.bits == 4 else weight.data.view(weight.outputs, -1, weight.group)
    )
    return (grouped.float() * weight.scales.float()[..., None]).flatten(1)


def quant_matmul(x: torch.Tensor, weight: QuantizedWeight) -> torch.Tensor:
    return (x.float() @ dequantize(weight).T).to(x.dtype)
