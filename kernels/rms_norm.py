"""Root-mean-square norm, with or without adding the residual first (Zhang and Sennrich, 2019).

``y = x / sqrt(mean(x^2) + eps) * weight`` over the last axis. The fused form computes ``s = x + residual``, norms it
and gives both, which saves one read and one write of the activations. Sums run in float32; ``s`` is rounded to the
inputs' type before it is normed, as it would be by two separate operators.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import launch
from .platform import Arch, arch_of


@triton.jit
def rms_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, sum_ptr, rows, x_row, residual_row, width, eps,
    ADD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    x = tl.load(x_ptr + row[:, None] * x_row + column[None, :], mask=inside, other=0.0).to(tl.float32)
    if ADD:
        residual = tl.load(residual_ptr + row[:, None] * residual_row + column[None, :], mask=inside, other=0.0)
        rounded = (x + residual.to(tl.float32)).to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + row[:, None] * width + column[None, :], rounded, mask=inside)
        x = rounded.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / width + eps)
    weight = tl.load(weight_ptr + column, mask=column < width, other=0.0).to(tl.float32)
    y = x * scale[:, None] * weight[None, :]
    tl.store(out_ptr + row[:, None] * width + column[None, :], y.to(out_ptr.dtype.element_ty), mask=inside)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, *, tile: launch.Rows | None = None, arch: Arch | None = None
) -> torch.Tensor:
    """Norm ``x`` (..., width) by ``weight`` (width,); the same shape and type come back."""
    return _launch(x, None, weight, eps, tile, arch)[0]


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, *,
    tile: launch.Rows | None = None, arch: Arch | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The norm of ``x + residual`` (both (..., width)) and the sum itself."""
    if x.shape != residual.shape:
        raise ValueError(f"A residual of shape {tuple(residual.shape)} does not fit {tuple(x.shape)}.")
    return _launch(x, residual, weight, eps, tile, arch)


def _launch(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float, tile: launch.Rows | None,
    arch: Arch | None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    width = x.shape[-1]
    if weight.shape != (width,):
        raise ValueError(f"A weight of shape {tuple(weight.shape)} does not fit rows of {width}.")
    flat = rows_of(x)
    other = flat if residual is None else rows_of(residual)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = out if residual is None else torch.empty_like(out)
    tile = tile or launch.elementwise(arch or arch_of(x.device), width, flat.shape[0])
    if flat.shape[0]:
        rms_norm_kernel[(triton.cdiv(flat.shape[0], tile.rows),)](
            flat, other, weight, out, total, flat.shape[0], flat.stride(0), other.stride(0), width, eps,
            ADD=residual is not None, ROWS=tile.rows, COLUMNS=tile.columns, num_warps=tile.warps,
        )  # fmt: skip
    return out, total


def rows_of(x: torch.Tensor) -> torch.Tensor:
    """``x`` (..., width) as (rows, width) with neighbouring columns: a view where the strides allow, else a copy."""
    flat = x.reshape(-1, x.shape[-1])
    return flat if flat.stride(-1) == 1 else flat.contiguous()
