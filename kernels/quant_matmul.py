"""Products with weights kept in eight or four bits: ``y = x W^T``, ``W = q * scale`` by output and group of inputs.

Weights are unpacked in registers on their way to the matrix unit, so what crosses the memory bus is what is stored.
Integers up to 127 are exact in bf16 and fp16; scales multiply the float32 sums of a group. One row of ``x`` takes a
kernel without a matrix unit: it would idle 15 of 16 rows, and the weights' bytes are the limit anyway.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import launch
from .platform import Arch, arch_of
from .quant_weights import QuantizedWeight


@triton.jit
def quant_matmul_kernel(
    x_ptr, w_ptr, scales_ptr, out_ptr, rows, outputs, inputs, x_row, w_row, scales_row, out_row,
    BITS: tl.constexpr, GROUP: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """An ``M`` x ``N`` tile. A step takes ``K`` inputs of one group: in four bits, as its low and its high half."""
    row = tl.program_id(1).to(tl.int64) * M + tl.arange(0, M)
    output = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    step = tl.arange(0, K // 2 if BITS == 4 else K)
    row_live, output_live = (row < rows)[:, None], (output < outputs)[:, None]
    acc = tl.zeros((M, N), tl.float32)
    for at in range(0, inputs, K):
        if BITS == 4:
            group = at // GROUP
            inside = (at - group * GROUP) // 2
            low_at = group * GROUP + inside + step
            packed = tl.load(
                w_ptr + output[:, None] * w_row + (group * (GROUP // 2) + inside + step)[None, :],
                mask=output_live,
                other=0,
            ).to(tl.int32)
            x_low = tl.load(x_ptr + row[:, None] * x_row + low_at[None, :], mask=row_live, other=0.0)
            x_high = tl.load(x_ptr + row[:, None] * x_row + (low_at + GROUP // 2)[None, :], mask=row_live, other=0.0)
            low, high = ((packed & 15) - 8).to(x_low.dtype), ((packed >> 4) - 8).to(x_low.dtype)
            part = tl.dot(x_low, tl.trans(low), input_precision="ieee")
            part = tl.dot(x_high, tl.trans(high), part, input_precision="ieee")
        else:
            w = tl.load(w_ptr + output[:, None] * w_row + (at + step)[None, :], mask=output_live, other=0)
            x = tl.load(x_ptr + row[:, None] * x_row + (at + step)[None, :], mask=row_live, other=0.0)
            part = tl.dot(x, tl.trans(w.to(x.dtype)), input_precision="ieee")
        scale = tl.load(scales_ptr + output * scales_row + at // GROUP, mask=output < outputs, other=0.0)
        acc += part * scale.to(tl.float32)[None, :]
    inside_out = row_live & (output < outputs)[None, :]
    tl.store(out_ptr + row[:, None] * out_row + output[None, :], acc.to(out_ptr.dtype.element_ty), mask=inside_out)


@triton.jit
def quant_vector_kernel(
    x_ptr, w_ptr, scales_ptr, out_ptr, outputs, inputs, w_row, scales_row,
    BITS: tl.constexpr, GROUP: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """``N`` outputs of a single row; a step takes ``K`` inputs, whole groups or part of one."""
    output = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    live = (output < outputs)[:, None]
    step = tl.arange(0, K // 2 if BITS == 4 else K)
    acc = tl.zeros((N, K // 2 if BITS == 4 else K), tl.float32)
    for at in range(0, inputs, K):
        if BITS == 4:
            byte = at // 2 + step
            group, inside = byte // (GROUP // 2), byte % (GROUP // 2)
            here = byte < inputs // 2
            packed = tl.load(w_ptr + output[:, None] * w_row + byte[None, :], mask=live & here[None, :], other=0).to(
                tl.int32
            )
            x_low = tl.load(x_ptr + group * GROUP + inside, mask=here, other=0.0).to(tl.float32)
            x_high = tl.load(x_ptr + group * GROUP + inside + GROUP // 2, mask=here, other=0.0).to(tl.float32)
            part = ((packed & 15) - 8).to(tl.float32) * x_low[None, :] + ((packed >> 4) - 8).to(tl.float32) * x_high[
                None, :
            ]
        else:
            here = at + step < inputs
            group = (at + step) // GROUP
            w = tl.load(w_ptr + output[:, None] * w_row + (at + step)[None, :], mask=live & here[None, :], other=0)
            part = w.to(tl.float32) * tl.load(x_ptr + at + step, mask=here, other=0.0).to(tl.float32)[None, :]
        scale = tl.load(
            scales_ptr + output[:, None] * scales_row + group[None, :], mask=live & here[None, :], other=0.0
        )
        acc += part * scale.to(tl.float32)
    tl.store(out_ptr + output, tl.sum(acc, axis=1).to(out_ptr.dtype.element_ty), mask=output < outputs)


def quant_matmul(x: torch.Tensor, weight: QuantizedWeight, *, arch: Arch | None = None) -> torch.Tensor:
    """Multiply ``x`` (rows, inputs) by ``weight``; gives (rows, outputs) in the type of ``x``."""
    rows, inputs = x.shape
    if inputs != weight.inputs:
        raise ValueError(f"{inputs} columns do not fit a weight of {weight.inputs} inputs.")
    arch = arch or arch_of(x.device)
    x = x if x.stride(-1) == 1 else x.contiguous()
    out = torch.empty((rows, weight.outputs), dtype=x.dtype, device=x.device)
    if rows == 1:
        lines = launch.vector_rows(arch, weight.outputs)
        quant_vector_kernel[(triton.cdiv(weight.outputs, lines.rows),)](
            x, weight.data, weight.scales, out, weight.outputs, inputs, weight.data.stride(0), weight.scales.stride(0),
            BITS=weight.bits, GROUP=weight.group, N=lines.rows, K=lines.columns, num_warps=lines.warps,
        )  # fmt: skip
    elif rows:
        tile = launch.gemm(arch, rows, x.element_size())
        quant_matmul_kernel[(triton.cdiv(weight.outputs, tile.n), triton.cdiv(rows, tile.m))](
            x, weight.data, weight.scales, out, rows, weight.outputs, inputs, x.stride(0), weight.data.stride(0),
            weight.scales.stride(0), out.stride(0), BITS=weight.bits, GROUP=weight.group,
            M=tile.m, N=tile.n, K=min(tile.k, weight.group), num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return out
