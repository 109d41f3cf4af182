"""Plain form of ``kernels.rms_norm``."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    return (wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.float()).to(x.dtype)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    total = (x.float() + residual.float()).to(x.dtype)
    return rms_norm(total, weight, eps), total
