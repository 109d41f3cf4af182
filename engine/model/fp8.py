"""Weights of eight bits (E4M3) with one scale a block of rows and columns, as DeepSeek-V3 is published."""

from __future__ import annotations

import torch

from .source import Part

SCALES = "_scale_inv"
"""Behind a weight's name: its scales, (rows / block, columns / block) rounded up, which weights are multiplied by."""


def widen_fp8(
    values: torch.Tensor, scales: torch.Tensor, blocks: tuple[int, int], shape: tuple[int, ...], part: Part
) -> torch.Tensor:
    """``part`` of a weight of ``shape``, as bfloat16, from that part's E4M3 ``values`` and all of its ``scales``."""
    of_axis = []
    for axis, size in enumerate(blocks):
        found = part[axis] if axis < len(part) else slice(None)
        of_axis.append(torch.arange(shape[axis])[found] // size)
    rows, columns = of_axis
    return (values.float() * scales.float()[rows][:, columns]).to(torch.bfloat16)


def scales_shape(shape: tuple[int, ...], blocks: tuple[int, int]) -> tuple[int, ...]:
    """Of the scales of a weight of ``shape``."""
    return tuple(-(-extent // size) for extent, size in zip(shape, blocks, strict=True))
