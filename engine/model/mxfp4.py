"""MXFP4 weights: groups of 32 four-bit floats (E2M1) with one power of two (E8M0) each.

OCP Microscaling Formats (MX) specification 1.0, 2023. A code's highest bit is its sign; a scale of byte ``s`` is
``2 ** (s - 127)``. Two codes are in a byte, the first in the lower half. Every value is exact in bfloat16 as long as it
is neither above 6e38 nor below 1e-38.
"""

from __future__ import annotations

import torch

GROUP = 32
"""Weights that share a scale."""

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_BIAS = 127


def dequantize_mxfp4(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """``blocks`` (..., groups, 16) and ``scales`` (..., groups), both uint8, to (..., groups * 32) bfloat16."""
    values = torch.tensor((*_MAGNITUDES, *(-value for value in _MAGNITUDES)), dtype=torch.float32)
    codes = torch.stack((blocks & 0x0F, blocks >> 4), dim=-1).flatten(-2)
    exponents = scales.to(torch.int32).unsqueeze(-1) - _BIAS
    return torch.ldexp(values[codes.long()], exponents).to(torch.bfloat16).flatten(-2)
