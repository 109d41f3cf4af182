"""Merge attention computed over parts of the keys, using each part's log-sum-exp.

With parts ``s``, outputs ``o_s`` and log-sum-exps ``l_s`` (natural logarithm)::

    l = log sum_s exp(l_s)          o = sum_s exp(l_s - l) o_s

A part without keys has ``l_s = -inf`` (or NaN) and weighs nothing, whatever stands in its output (NaN included).
Merging is associative and commutative, so keys may be cut anywhere: among programs, devices or pages. Where no part
has a key the output is 0 and the log-sum-exp -inf.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import launch
from .platform import Arch, arch_of


@triton.jit
def merge_states_kernel(
    outs_ptr, lses_ptr, out_ptr, lse_ptr, rows, outs_part, outs_row, lses_part, lses_row, out_row, width,
    PARTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Online softmax over the parts: rescale what is summed so far whenever the maximum moves."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    live = row < rows
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    for part in range(PARTS):
        lse = tl.load(lses_ptr + part * lses_part + row * lses_row, mask=live, other=float("-inf")).to(tl.float32)
        full = lse > float("-inf")
        there = full[:, None] & (column < width)[None, :]
        value = tl.load(outs_ptr + part * outs_part + row[:, None] * outs_row + column[None, :], mask=there, other=0.0)
        higher = tl.maximum(top, tl.where(full, lse, float("-inf")))
        safe = tl.where(higher > float("-inf"), higher, 0.0)
        kept = tl.exp(top - safe)
        weight = tl.where(full, tl.exp(lse - safe), 0.0)
        total = total * kept + weight
        acc = acc * kept[:, None] + weight[:, None] * value.to(tl.float32)
        top = higher
    some = total > 0.0
    result = tl.where(some[:, None], acc / tl.where(some, total, 1.0)[:, None], 0.0)
    inside = live[:, None] & (column < width)[None, :]
    tl.store(out_ptr + row[:, None] * out_row + column[None, :], result.to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(lse_ptr + row, tl.where(some, top + tl.log(tl.where(some, total, 1.0)), float("-inf")), mask=live)


def merge_states(
    outs: torch.Tensor, lses: torch.Tensor, dtype: torch.dtype | None = None, *, arch: Arch | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge ``outs`` (parts, rows, heads, width) weighted by ``lses`` (parts, rows, heads).

    Gives the output (rows, heads, width) in ``dtype`` (by default that of ``outs``) and its log-sum-exp (rows, heads)
    in float32. Raises ValueError where the shapes do not belong together.
    """
    parts, rows, heads, width = outs.shape
    if lses.shape != (parts, rows, heads):
        raise ValueError(f"Log-sum-exps of shape {tuple(lses.shape)} do not fit outputs {tuple(outs.shape)}.")
    flat, weights = outs.reshape(parts, rows * heads, width), lses.reshape(parts, rows * heads)
    flat = flat if flat.stride(-1) == 1 else flat.contiguous()
    out = torch.empty((rows, heads, width), dtype=dtype or outs.dtype, device=outs.device)
    lse = torch.empty((rows, heads), dtype=torch.float32, device=outs.device)
    tile = launch.elementwise(arch or arch_of(outs.device), width, rows * heads)
    if rows * heads:
        merge_states_kernel[(triton.cdiv(rows * heads, tile.rows),)](
            flat, weights, out, lse, rows * heads, flat.stride(0), flat.stride(1), weights.stride(0), weights.stride(1),
            width, width, PARTS=parts, ROWS=tile.rows, COLUMNS=tile.columns, num_warps=tile.warps,
        )  # fmt: skip
    return out, lse
