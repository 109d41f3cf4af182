"""Sampling in one kernel where the device has one: a sort of a whole vocabulary costs a GPU more than a layer does."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.ops import Draw

from .request import SamplingParams
from .sampler import Drawer


def drawer_of(kernel: Draw | None) -> Drawer | None:
    """How a sampler draws with ``kernel``; None: as it does by itself.

    The filters are the sampler's own, and the same seed at the same position draws the same token again; which token
    that is differs from what the sampler's own way would draw.
    """
    if kernel is None:
        return None

    def draw(logits: torch.Tensor, params: Sequence[SamplingParams], quantiles: Sequence[float]) -> list[int]:
        tokens: list[int] = kernel(
            logits,
            [p.temperature for p in params],
            [p.top_k for p in params],
            [p.top_p for p in params],
            [p.min_p for p in params],
            [int(quantile * 2**53) for quantile in quantiles],  # exact: a quantile has 53 bits
        ).tolist()
        return tokens

    return draw
