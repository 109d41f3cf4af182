"""What stands between the two products of a feed-forward, beside SwiGLU: (rows, 2 * width), gates first, to
(rows, width)."""

from __future__ import annotations

import torch
from torch.nn import functional


def geglu(gate_up: torch.Tensor) -> torch.Tensor:
    """``gelu(gate) * up`` with the tanh form of GELU."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.gelu(gate, approximate="tanh") * up


class ClampedSwiglu:
    """``(up + 1) * gate * sigmoid(alpha * gate)``, the gate at most ``limit`` and up within it (gpt-oss, 2025)."""

    def __init__(self, alpha: float, limit: float) -> None:
        self._alpha = alpha
        self._limit = limit

    def __call__(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        gate = gate.clamp(max=self._limit)
        return (up.clamp(-self._limit, self._limit) + 1) * gate * torch.sigmoid(self._alpha * gate)
