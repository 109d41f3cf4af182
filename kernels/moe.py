"""The arithmetic of a mixture of experts: every expert's product over its own tokens, and the weighted sum of what
they say.

``grouped_gemm``: ``y[pair] = x[pair // share] W[expert of pair]^T``. ``combine``: ``out[token] = sum_c weight[token,
c] y[token, c]``.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import launch
from .moe_routing import Groups
from .platform import Arch, arch_of


@triton.jit
def grouped_gemm_kernel(
    x_ptr, w_ptr, pairs_ptr, experts_ptr, out_ptr, count, outputs, inputs, x_row, w_expert, w_row,
    SHARE: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """A tile of one expert's tokens by ``N`` of its outputs; tiles without an expert end at once."""
    expert = tl.load(experts_ptr + tl.program_id(1)).to(tl.int64)
    if expert < 0:
        return
    pair = tl.load(pairs_ptr + tl.program_id(1) * M + tl.arange(0, M)).to(tl.int64)
    output = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    step = tl.arange(0, K)
    pair_live, output_live = (pair < count)[:, None], (output < outputs)[:, None]
    x_at = x_ptr + (pair // SHARE)[:, None] * x_row
    w_at = w_ptr + expert * w_expert + output[:, None] * w_row
    acc = tl.zeros((M, N), tl.float32)
    for at in range(0, inputs, K):
        column = (at + step)[None, :]
        x = tl.load(x_at + column, mask=pair_live & (column < inputs), other=0.0)
        w = tl.load(w_at + column, mask=output_live & (column < inputs), other=0.0)
        acc = tl.dot(x, tl.trans(w), acc, input_precision="ieee")
    inside = pair_live & (output < outputs)[None, :]
    tl.store(out_ptr + pair[:, None] * outputs + output[None, :], acc.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def combine_kernel(y_ptr, weights_ptr, out_ptr, width, TOP_K: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    acc = tl.zeros((COLUMNS,), tl.float32)
    for choice in range(TOP_K):
        weight = tl.load(weights_ptr + row * TOP_K + choice).to(tl.float32)
        y = tl.load(y_ptr + (row * TOP_K + choice) * width + column, mask=inside, other=0.0)
        acc += weight * y.to(tl.float32)
    tl.store(out_ptr + row * width + column, acc.to(out_ptr.dtype.element_ty), mask=inside)


def token_block(x: torch.Tensor, top_k: int, experts: int, arch: Arch | None = None) -> int:
    """The tile of tokens that suits ``x`` (rows, width) spread over ``experts``: what ``plan_groups`` is to be
    given."""
    each = launch.ceil_div(x.shape[0] * top_k, experts)
    return launch.gemm(arch or arch_of(x.device), each, x.element_size()).m


def grouped_gemm(
    x: torch.Tensor, weights: torch.Tensor, groups: Groups, share: int, *, arch: Arch | None = None
) -> torch.Tensor:
    """Every pair's product with its expert's matrix of ``weights`` (experts, outputs, inputs), as (pairs, outputs).

    ``share`` consecutive pairs read one row of ``x``: top_k where ``x`` is (rows, inputs), 1 where it is (pairs,
    inputs).
    """
    outputs, inputs = weights.shape[1:]
    if x.shape != (groups.count // share, inputs):
        raise ValueError(f"Inputs {tuple(x.shape)} do not fit {groups.count} pairs of {inputs} columns.")
    if x.stride(-1) != 1 or weights.stride(-1) != 1:
        raise ValueError("Columns of inputs and weights must be neighbours in memory.")
    out = torch.empty((groups.count, outputs), dtype=x.dtype, device=x.device)
    tile = launch.gemm(arch or arch_of(x.device), groups.block, x.element_size())
    if groups.count:
        grouped_gemm_kernel[(triton.cdiv(outputs, tile.n), groups.experts.shape[0])](
            x, weights, groups.pairs, groups.experts, out, groups.count, outputs, inputs, x.stride(0),
            *weights.stride()[:2], SHARE=share, M=groups.block, N=tile.n, K=tile.k, num_warps=tile.warps,
            num_stages=tile.stages,
        )  # fmt: skip
    return out


def combine(y: torch.Tensor, weights: torch.Tensor, *, arch: Arch | None = None) -> torch.Tensor:
    """Weigh ``y`` (rows * top_k, width) by ``weights`` (rows, top_k) and add it up to (rows, width)."""
    rows, top_k = weights.shape
    if y.shape[0] != rows * top_k:
        raise ValueError(f"{y.shape[0]} results do not fit weights {tuple(weights.shape)}.")
    y, weights = y.contiguous(), weights.contiguous()
    out = torch.empty((rows, y.shape[1]), dtype=y.dtype, device=y.device)
    columns = min(1024, launch.power_of_two(y.shape[1]))
    warps = 2 if (arch or arch_of(y.device)).warp == 64 else 4
    if rows:
        combine_kernel[(rows, triton.cdiv(y.shape[1], columns))](
            y, weights, out, y.shape[1], TOP_K=top_k, COLUMNS=columns, num_warps=warps
        )
    return out
