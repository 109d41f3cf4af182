"""Plain form of ``kernels.kv_copy``."""

from __future__ import annotations

import torch


def copy_blocks(source: torch.Tensor, target: torch.Tensor, source_ids: torch.Tensor, target_ids: torch.Tensor) -> None:
    for a, b in zip(source_ids.tolist(), target_ids.tolist(), strict=True):
        if a >= 0 and b >= 0:
            target[b] = source[a].to(target.dtype)
