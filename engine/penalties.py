"""Penalties on tokens that a request has used already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from .request import Request, SamplingParams


def has_penalties(params: SamplingParams) -> bool:
    """Whether ``penalize`` would change anything."""
    return params.presence_penalty != 0 or params.frequency_penalty != 0 or params.repetition_penalty != 1


def penalize(row: torch.Tensor, request: Request, ahead: Sequence[int] = ()) -> torch.Tensor:
    """``row`` (vocab,) with the request's penalties; the input is not changed. ``ahead`` are tokens after its output.

    Repetition (Keskar et al., 2019) divides positive and multiplies negative logits of every token of prompt and
    output; then each output token loses ``frequency * count + presence`` (OpenAI's definition).
    """
    params = request.params
    if not has_penalties(params):
        return row
    row = row.clone()
    if params.repetition_penalty != 1:
        used = torch.tensor(sorted({*request.prompt, *request.output, *ahead}), device=row.device)
        values = row[used]
        row[used] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    counts = Counter((*request.output, *ahead))
    if counts:
        ids = torch.tensor(list(counts), device=row.device)
        times = torch.tensor(list(counts.values()), dtype=row.dtype, device=row.device)
        row[ids] -= params.frequency_penalty * times + params.presence_penalty
    return row
