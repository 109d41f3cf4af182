"""Plain form of ``kernels.quant_matmul``."""

from __future__ import annotations

import torch

from ..quant_weights import QuantizedWeight, codes_of


def dequantize(weight: QuantizedWeight) -> torch.Tensor:
    """The weights as (outputs, inputs) float32."""
    wide = codes_of(weight).float() * weight.scales.float()[..., None]
    if weight.lows is not None:
        wide = wide + weight.lows.float()[..., None]
    return wide.flatten(1)[:, : weight.inputs]


def quant_matmul(x: torch.Tensor, weight: QuantizedWeight) -> torch.Tensor:
    """The weights rounded to the type of ``x``, the product in float32."""
    return (x.float() @ dequantize(weight).to(x.dtype).float().T).to(x.dtype)
