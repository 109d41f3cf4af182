"""``silu(gate) * up`` with ``silu(g) = g / (1 + exp(-g))``, for a gate and an up half that lie side by side (Shazeer,
2020)."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from .platform import Arch, arch_of
from .rms_norm import rows_of

_COLUMNS = 1024  # eight elements a thread at four warps of 32, so each load is one 16-byte access in 16 bits


@triton.jit
def swiglu_kernel(pair_ptr, out_ptr, pair_row, out_row, width, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    gate = tl.load(pair_ptr + row * pair_row + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(pair_ptr + row * pair_row + width + column, mask=inside, other=0.0).to(tl.float32)
    y = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + row * out_row + column, y.to(out_ptr.dtype.element_ty), mask=inside)


def swiglu(gate_up: torch.Tensor, *, arch: Arch | None = None) -> torch.Tensor:
    """Gate ``gate_up`` (..., 2 * width), gate first; gives (..., width) in the same type."""
    if gate_up.shape[-1] % 2:
        raise ValueError(f"Gate and up need an even number of columns, not {gate_up.shape[-1]}.")
    width = gate_up.shape[-1] // 2
    flat = rows_of(gate_up)
    out = torch.empty((*gate_up.shape[:-1], width), dtype=gate_up.dtype, device=gate_up.device)
    warps = 2 if (arch or arch_of(gate_up.device)).warp == 64 else 4
    if flat.shape[0]:
        swiglu_kernel[(flat.shape[0], triton.cdiv(width, _COLUMNS))](
            flat, out, flat.stride(0), width, width, COLUMNS=_COLUMNS, num_warps=warps
        )
    return out
