"""Rows of all replicas together, for layers whose weights are spread over them."""

from __future__ import annotations

import torch
from torch.nn import functional

from .ports import Collective


def gather_rows(replicas: Collective, rows: torch.Tensor) -> tuple[torch.Tensor, slice]:
    """The rows (n, width) of every replica, one behind another, and which of them are our own; any may have none."""
    if replicas.size == 1:
        return rows, slice(0, len(rows))
    counts = [int(count) for count in replicas.all_gather(torch.tensor([len(rows)], device=rows.device))]
    padded = functional.pad(rows, (0, 0, 0, max(counts) - len(rows)))
    parts = replicas.all_gather(padded)
    start = sum(counts[: replicas.rank])
    together = torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
    return together, slice(start, start + len(rows))
