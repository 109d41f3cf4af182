"""Plain form of ``kernels.merge_states``."""

from __future__ import annotations

import torch


def merge_states(
    outs: torch.Tensor, lses: torch.Tensor, dtype: torch.dtype | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax over the parts' log-sum-exps weighs their outputs; parts at -inf are left out."""
    lse = torch.logsumexp(lses.float(), dim=0)
    weights = torch.where(lses > -torch.inf, torch.exp(lses.float() - lse), 0.0)
    values = torch.where(weights[..., None] > 0, outs.float(), 0.0)
    return (weights[..., None] * values).sum(0).to(dtype or outs.dtype), lse
