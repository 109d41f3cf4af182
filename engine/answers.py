"""A step's logits as what was asked of it: sampled tokens, and how likely the tokens of prompts were."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .batch import Batch, Sampled, ScheduledRequest
from .memory import foreign_memory_errors
from .request import TokenLogprobs
from .sampler import Sampler

MOST_SCORED = 256
"""Prompt tokens scored in one batch: rows of logits that a model of 150,000 tokens can give in 150 MB."""

Answers = tuple[list[Sampled | None], Sequence[tuple[TokenLogprobs, ...]]]
"""An entry per batch item each, as in ``StepResult``."""


def answer(sampler: Sampler, batch: Batch, logits: torch.Tensor) -> Answers:
    """``logits`` (rows, vocab) hold, item by item, the rows that are scored and then those that are sampled from.

    Raises OutOfMemoryError.
    """
    sampling = [item for item in batch.items if item.sample]
    requests, drafts = [item.request for item in sampling], [item.draft for item in sampling]
    with torch.inference_mode(), foreign_memory_errors(f"Sampling for {len(requests)} requests"):
        scores: list[tuple[TokenLogprobs, ...]] = []
        if any(item.scored for item in batch.items):
            logits, scores = _scored(batch, logits)
        chosen = iter(sampler.sample(logits, requests, drafts))
    return [next(chosen) if item.sample else None for item in batch.items], scores


def _scored(batch: Batch, logits: torch.Tensor) -> tuple[torch.Tensor, list[tuple[TokenLogprobs, ...]]]:
    """The rows to sample from, and each item's log-probabilities."""
    kept: list[torch.Tensor] = []
    scores: list[tuple[TokenLogprobs, ...]] = []
    for item, rows in zip(batch.items, torch.split(logits, [one.rows for one in batch.items]), strict=True):
        scores.append(score(rows[: item.scored], _next_tokens(item), item.request.params.prompt_logprobs or 0))
        kept.append(rows[item.scored :])
    return torch.cat(kept), scores


def _next_tokens(item: ScheduledRequest) -> list[int]:
    """The prompt's token after each position that is scored."""
    known = len(item.request.scores)
    return item.request.tokens(known + 1, known + 1 + item.scored)


def score(rows: torch.Tensor, tokens: Sequence[int], alternatives: int) -> tuple[TokenLogprobs, ...]:
    """The log-probability of each row's token, of raw logits (rows, vocab), and of the most likely ``alternatives``."""
    if not tokens:
        return ()
    totals = rows.logsumexp(dim=-1, keepdim=True)
    wanted = torch.tensor(tokens, device=rows.device).unsqueeze(1)
    chosen: list[float] = (rows.gather(1, wanted) - totals).squeeze(1).tolist()
    values, ids = rows.topk(min(alternatives, rows.shape[-1]))
    each = zip(chosen, ids.tolist(), (values - totals).tolist(), strict=True)
    return tuple(TokenLogprobs(own, tuple(zip(top, likely, strict=True))) for own, top, likely in each)
