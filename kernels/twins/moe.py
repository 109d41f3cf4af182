"""Plain form of ``kernels.moe_routing`` and ``kernels.moe``."""

from __future__ import annotations

import torch


def route(
    logits: torch.Tensor, top_k: int, scoring: str = "softmax", bias: torch.Tensor | None = None,
    *, renormalize: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    scores = logits.float().sigmoid() if scoring == "sigmoid" else logits.float().softmax(-1)
    rank = scores if bias is None else scores + bias.float()
    ids = rank.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    weights = scores.gather(1, ids)
    return (weights / weights.sum(-1, keepdim=True) if renormalize else weights), ids.int()


def grouped_gemm(x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, share: int) -> torch.Tensor:
    """Pair by pair; ``ids`` (rows, top_k)."""
    pairs = [weights[expert].float() @ x[pair // share].float() for pair, expert in enumerate(ids.flatten().tolist())]
    return torch.stack(pairs).to(x.dtype)


def combine(y: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return (y.float().view(*weights.shape, -1) * weights.float()[..., None]).sum(1).to(y.dtype)
