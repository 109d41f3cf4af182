"""Copy pages between pools, and between layouts of pools.

A pool is a five-dimensional view (blocks, block_tokens, 2, kv_heads, head_dim) whose strides say how it really lies:
token-major, head-major or keys and values apart are ``permute``s of one another. So a copy from any layout to any
other is one kernel with two sets of strides. Either side may be host memory that the device maps (pinned).
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import launch
from .platform import Arch, arch_of


@triton.jit
def kv_copy_kernel(
    src_ptr, dst_ptr, src_ids_ptr, dst_ids_ptr, cells, src_block, src_token, src_side, src_head,
    dst_block, dst_token, dst_side, dst_head, heads, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    """One program a pair of blocks and ``CELLS`` of its (token, side, head) cells; a negative id copies nothing."""
    pair = tl.program_id(0).to(tl.int64)
    source, target = tl.load(src_ids_ptr + pair).to(tl.int64), tl.load(dst_ids_ptr + pair).to(tl.int64)
    cell = tl.program_id(1) * CELLS + tl.arange(0, CELLS)
    column = tl.arange(0, COLUMNS)
    token, side, head = cell // (2 * heads), cell // heads % 2, cell % heads
    live = cell < tl.where(tl.minimum(source, target) >= 0, cells, 0)
    inside = live[:, None] & (column < WIDTH)[None, :]
    from_at = source * src_block + token * src_token + side * src_side + head * src_head
    to_at = target * dst_block + token * dst_token + side * dst_side + head * dst_head
    x = tl.load(src_ptr + from_at[:, None] + column[None, :], mask=inside)
    tl.store(dst_ptr + to_at[:, None] + column[None, :], x.to(dst_ptr.dtype.element_ty), mask=inside)


def copy_blocks(
    source: torch.Tensor, target: torch.Tensor, source_ids: torch.Tensor, target_ids: torch.Tensor,
    *, arch: Arch | None = None,
) -> None:  # fmt: skip
    """Copy block ``source_ids[i]`` of ``source`` over block ``target_ids[i]`` of ``target``, for every ``i``.

    Both pools are (blocks, block_tokens, 2, kv_heads, head_dim) with neighbouring columns, the ids int32 or int64. A
    target named twice ends as one of its sources. Raises ValueError where blocks differ in shape, or ids in number.
    """
    if source.shape[1:] != target.shape[1:]:
        raise ValueError(f"Blocks of {tuple(source.shape[1:])} cannot be copied over {tuple(target.shape[1:])}.")
    if source_ids.shape != target_ids.shape:
        raise ValueError(f"{source_ids.numel()} sources and {target_ids.numel()} targets are no pairs of blocks.")
    if source.stride(-1) != 1 or target.stride(-1) != 1:
        raise ValueError("A head's columns must be neighbours in memory.")
    arch = arch or arch_of(target.device)
    _, tokens, sides, heads, width = source.shape
    cells, columns = tokens * sides * heads, launch.power_of_two(width)
    height = max(1, min(4096 // columns, launch.power_of_two(cells)))
    most = launch.copies_per_launch(arch)
    for first in range(0, len(source_ids), most):
        some = slice(first, first + most)
        kv_copy_kernel[(len(source_ids[some]), triton.cdiv(cells, height))](
            source, target, source_ids[some], target_ids[some], cells, *source.stride()[:4], *target.stride()[:4],
            heads, WIDTH=width, COLUMNS=columns, CELLS=height, num_warps=2 if arch.warp == 64 else 4,
        )  # fmt: skip
