"""What a request wants done to its logits first: biases, a least length, penalties, the mask of a guide."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from .penalties import has_penalties, penalize
from .request import Request
from .structured.ports import Guide

_NEVER = float("-inf")


def adjusts(request: Request) -> bool:
    """Whether ``adjust`` would change a row of this request: whoever samples elsewhere must ask first."""
    params = request.params
    if request.guide is not None or params.logit_bias or has_penalties(params):
        return True
    return len(request.output) < params.min_tokens


def adjust(row: torch.Tensor, request: Request, ends: Iterable[int], ahead: Sequence[int] = ()) -> torch.Tensor:
    """``row`` (vocab,) as the request wants it; the input is not changed. The length comes last: it gives way.

    ``ends`` are the ids that end a text; ``ahead`` are guessed tokens after the request's output, before this row's.
    """
    params = request.params
    if params.logit_bias:
        row = row.clone()
        ids = torch.tensor([token for token, _ in params.logit_bias], device=row.device)
        row[ids] += torch.tensor([bias for _, bias in params.logit_bias], dtype=row.dtype, device=row.device)
    row = penalize(row, request, ahead)
    if request.guide is not None:
        row = _masked(row, _after(request.guide, ahead))
    banned = _ends_too_early(request, ends, len(ahead))
    return _without(row, banned) if banned else row


def _without(row: torch.Tensor, banned: Sequence[int]) -> torch.Tensor:
    """The row without some tokens, unless none would be left: a form that is complete ends however short it is."""
    rest = row.clone()
    rest[torch.tensor(banned, device=row.device)] = _NEVER
    return rest if bool((rest > _NEVER).any()) else row


def _ends_too_early(request: Request, ends: Iterable[int], ahead: int) -> list[int]:
    """Tokens that would end the answer before its least length. Those of ``ends`` end nothing with ``ignore_eos``."""
    params = request.params
    if len(request.output) + ahead >= params.min_tokens:
        return []
    return sorted({*params.stop_token_ids, *(() if params.ignore_eos else ends)})


def _after(guide: Guide, ahead: Sequence[int]) -> Guide:
    """The guide after guesses. A guess that was not allowed leaves one that failed: its row is not used."""
    if ahead:
        guide = guide.fork()
        for token in ahead:
            guide.advance(token)
    return guide


def _masked(row: torch.Tensor, guide: Guide) -> torch.Tensor:
    if guide.failure is not None:
        return row
    bits = np.unpackbits(np.frombuffer(guide.allowed(), dtype=np.uint8), bitorder="little")
    mask = np.zeros(row.numel(), dtype=bool)  # a model may have more rows than its tokenizer has tokens
    size = min(row.numel(), bits.size)
    mask[:size] = bits[:size]
    return row.masked_fill(torch.from_numpy(~mask).to(row.device), _NEVER)
