"""Products with weights kept in eight or four bits: ``y = x W^T``, ``W`` as ``quant_weights`` says.

Weights are unpacked in registers on their way to the matrix unit, so what crosses the memory bus is what is stored.
There they are rounded to the type of ``x``: the product is the one that a dense weight of that type would give, for
any number of rows. A single row takes a kernel without a matrix unit: it would idle 15 of 16 rows, and the weights'
bytes are the limit anyway.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import launch
from .cpu.blocks import GROUP
from .platform import Arch, arch_of
from .quant_weights import QuantizedWeight


@triton.jit
def _halves(
    w_ptr, scales_ptr, lows_ptr, output, at, groups, w_row, scales_row, live, kind,
    BITS: tl.constexpr, N: tl.constexpr, GROUPS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """``N`` outputs' weights of ``GROUPS`` groups from ``at`` on, as (N, GROUPS, HALF): the first and the second half
    of each group."""
    group = at + tl.arange(0, GROUPS)
    inside = live[:, None] & (group < groups)[None, :]
    side = output[:, None] * scales_row + group[None, :]
    scale = tl.load(scales_ptr + side, mask=inside, other=0.0).to(tl.float32)[:, :, None]
    lane = tl.arange(0, HALF)[None, None, :]
    there = inside[:, :, None] & (lane < HALF)
    row = output[:, None, None] * w_row
    if BITS == 4:
        packed = tl.load(w_ptr + row + group[None, :, None] * HALF + lane, mask=there, other=0).to(tl.int32)
        low = tl.load(lows_ptr + side, mask=inside, other=0.0).to(tl.float32)[:, :, None]
        first, second = (packed & 15).to(tl.float32) * scale + low, (packed >> 4).to(tl.float32) * scale + low
    else:
        start = w_ptr + row + group[None, :, None] * (2 * HALF) + lane
        first = tl.load(start, mask=there, other=0).to(tl.float32) * scale
        second = tl.load(start + HALF, mask=there, other=0).to(tl.float32) * scale
    return first.to(kind), second.to(kind)


@triton.jit
def quant_matmul_kernel(
    x_ptr, w_ptr, scales_ptr, lows_ptr, out_ptr, rows, outputs, inputs, groups, x_row, w_row, scales_row, out_row,
    BITS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, GROUPS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """An ``M`` x ``N`` tile; a step takes ``GROUPS`` groups of inputs, their first halves and then their second."""
    row = tl.program_id(1).to(tl.int64) * M + tl.arange(0, M)
    output = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    step = tl.arange(0, GROUPS * HALF)
    offset = step // HALF * (2 * HALF) + step % HALF
    x_at, live = x_ptr + row[:, None] * x_row, (row < rows)[:, None]
    acc = tl.zeros((M, N), tl.float32)
    kind = x_ptr.dtype.element_ty
    for at in range(0, groups, GROUPS):
        w_first, w_second = _halves(
            w_ptr, scales_ptr, lows_ptr, output, at, groups, w_row, scales_row, output < outputs, kind,
            BITS, N, GROUPS, HALF,
        )  # fmt: skip
        column = (at * (2 * HALF) + offset)[None, :]
        x_first = tl.load(x_at + column, mask=live & (column < inputs), other=0.0)
        x_second = tl.load(x_at + column + HALF, mask=live & (column + HALF < inputs), other=0.0)
        w_first, w_second = tl.reshape(w_first, (N, GROUPS * HALF)), tl.reshape(w_second, (N, GROUPS * HALF))
        acc = tl.dot(x_first, tl.trans(w_first), acc, input_precision="ieee")
        acc = tl.dot(x_second, tl.trans(w_second), acc, input_precision="ieee")
    inside = live & (output < outputs)[None, :]
    tl.store(out_ptr + row[:, None] * out_row + output[None, :], acc.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def quant_vector_kernel(
    x_ptr, w_ptr, scales_ptr, lows_ptr, out_ptr, outputs, inputs, groups, w_row, scales_row,
    BITS: tl.constexpr, N: tl.constexpr, GROUPS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """``N`` outputs of a single row; a step takes ``GROUPS`` groups of inputs."""
    output = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    offset = tl.arange(0, GROUPS)[:, None] * (2 * HALF) + tl.arange(0, HALF)[None, :]
    acc = tl.zeros((N, GROUPS, HALF), tl.float32)
    kind = x_ptr.dtype.element_ty
    for at in range(0, groups, GROUPS):
        w_first, w_second = _halves(
            w_ptr, scales_ptr, lows_ptr, output, at, groups, w_row, scales_row, output < outputs, kind,
            BITS, N, GROUPS, HALF,
        )  # fmt: skip
        column = at * (2 * HALF) + offset
        x_first = tl.load(x_ptr + column, mask=column < inputs, other=0.0).to(tl.float32)[None, :, :]
        x_second = tl.load(x_ptr + column + HALF, mask=column + HALF < inputs, other=0.0).to(tl.float32)[None, :, :]
        acc += w_first.to(tl.float32) * x_first + w_second.to(tl.float32) * x_second
    total = tl.sum(tl.sum(acc, axis=2), axis=1)
    tl.store(out_ptr + output, total.to(out_ptr.dtype.element_ty), mask=output < outputs)


def quant_matmul(x: torch.Tensor, weight: QuantizedWeight, *, arch: Arch | None = None) -> torch.Tensor:
    """Multiply ``x`` (rows, inputs) by ``weight``; gives (rows, outputs) in the type of ``x``."""
    rows, inputs = x.shape
    if inputs != weight.inputs:
        raise ValueError(f"{inputs} columns do not fit a weight of {weight.inputs} inputs.")
    arch = arch or arch_of(x.device)
    x = x if x.stride(-1) == 1 else x.contiguous()
    out = torch.empty((rows, weight.outputs), dtype=x.dtype, device=x.device)
    parts = (weight.data, weight.scales, weight.scales if weight.lows is None else weight.lows)
    groups, strides = weight.scales.shape[1], (weight.data.stride(0), weight.scales.stride(0))
    if rows == 1:
        lines = launch.vector_rows(arch, weight.outputs)
        quant_vector_kernel[(triton.cdiv(weight.outputs, lines.rows),)](
            x, *parts, out, weight.outputs, inputs, groups, *strides, BITS=weight.bits, N=lines.rows,
            GROUPS=lines.columns // GROUP, HALF=GROUP // 2, num_warps=lines.warps,
        )  # fmt: skip
    elif rows:
        tile = launch.gemm(arch, rows, x.element_size())
        quant_matmul_kernel[(triton.cdiv(weight.outputs, tile.n), triton.cdiv(rows, tile.m))](
            x, *parts, out, rows, weight.outputs, inputs, groups, x.stride(0), *strides, out.stride(0),
            BITS=weight.bits, M=tile.m, N=tile.n, GROUPS=max(1, tile.k // GROUP), HALF=GROUP // 2,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return out
