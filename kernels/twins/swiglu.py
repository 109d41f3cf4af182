"""Plain form of ``kernels.swiglu``."""

from __future__ import annotations

import torch


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` of ``(rows, 2 * width)`` whose first half is the gate."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)
