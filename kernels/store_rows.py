"""Write rows at numbered places: ``target[slots[i]] = rows[i]``; a slot below 0 (padding) writes nothing."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import launch
from .platform import Arch, arch_of
from .rms_norm import rows_of


@triton.jit
def store_rows_kernel(x_ptr, target_ptr, slots_ptr, x_row, target_row, width, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < tl.where(slot >= 0, width, 0)
    x = tl.load(x_ptr + row * x_row + column, mask=inside, other=0.0)
    tl.store(target_ptr + slot * target_row + column, x.to(target_ptr.dtype.element_ty), mask=inside)


def store_rows(x: torch.Tensor, target: torch.Tensor, slots: torch.Tensor, *, arch: Arch | None = None) -> None:
    """Write ``x`` (rows, width) over rows ``slots`` (rows,) of ``target`` (places, width), in the target's type.

    A place named twice ends as one of its rows. Raises ValueError where widths differ.
    """
    if x.shape[1] != target.shape[1] or target.stride(-1) != 1:
        raise ValueError(f"Rows of {x.shape[1]} columns do not fit places of {target.shape[1]} neighbouring ones.")
    x = rows_of(x)
    columns = min(1024, launch.power_of_two(x.shape[1]))
    warps = 2 if (arch or arch_of(x.device)).warp == 64 else 4
    if len(x):
        store_rows_kernel[(len(x), triton.cdiv(x.shape[1], columns))](
            x, target, slots, x.stride(0), target.stride(0), x.shape[1], COLUMNS=columns, num_warps=warps
        )
