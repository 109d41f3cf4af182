"""Plain form of paged attention, for one new token per request or many: gather, score, mask, weigh."""

from __future__ import annotations

import itertools

import torch


def gather(pages: torch.Tensor, blocks: torch.Tensor, length: int) -> torch.Tensor:
    """The first ``length`` tokens of a request whose pages are ``blocks``, as (length, heads, width) in float32."""
    used = -(-length // pages.shape[1])
    return pages[blocks[:used].long()].flatten(0, 1)[:length].float()


def attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float,
    sinks: torch.Tensor | None = None, window: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The last ``len(query)`` positions of a request over all of it: output (rows, heads, width) and log-sum-exp.

    ``query`` (rows, heads, head_dim), ``keys`` and ``values`` (length, kv_heads, width), all float32.
    """
    rows, heads, _ = query.shape
    length = len(keys)
    repeats = heads // max(1, keys.shape[1])
    scores = torch.einsum("qhd,khd->hqk", query, keys.repeat_interleave(repeats, 1)) * scale
    distance = torch.arange(length - rows, length)[:, None] - torch.arange(length)[None, :]
    hidden = (distance < 0) | ((distance >= window) if window else torch.zeros_like(distance, dtype=torch.bool))
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.float()[:, None, None].expand(heads, rows, 1)), dim=-1)
    lse = scores.logsumexp(-1)
    weights = torch.where(lse[..., None] > -torch.inf, torch.exp(scores - lse[..., None]), 0.0)[..., :length]
    return torch.einsum("hqk,khd->qhd", weights, values.repeat_interleave(repeats, 1)), lse.T


def paged_decode(
    query: torch.Tensor, key_pages: torch.Tensor, value_pages: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor,
    scale: float, sinks: torch.Tensor | None = None, window: int = 0, key_scale: float = 1.0, value_scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    outs, lses = [], []
    for row, (blocks, length) in enumerate(zip(table, lengths.tolist(), strict=True)):
        keys, values = gather(key_pages, blocks, length) * key_scale, gather(value_pages, blocks, length) * value_scale
        if length == 0:
            out, lse = torch.zeros(1, query.shape[1], values.shape[-1]), torch.full((1, query.shape[1]), -torch.inf)
            lse = lse if sinks is None else sinks.float()[None]
        else:
            out, lse = attend(query[row : row + 1].float(), keys, values, scale, sinks, window)
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs).to(query.dtype), torch.cat(lses)


def mla_decode(
    query: torch.Tensor, pages: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor, scale: float,
    rope_width: int = 64,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    return paged_decode(query, pages, pages[..., : pages.shape[-1] - rope_width], table, lengths, scale)


def paged_prefill(
    query: torch.Tensor, key_pages: torch.Tensor, value_pages: torch.Tensor, table: torch.Tensor,
    starts: torch.Tensor, lengths: torch.Tensor, scale: float, sinks: torch.Tensor | None = None, window: int = 0,
    scales: tuple[float, float] = (1.0, 1.0),
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    out = query.new_zeros((*query.shape[:2], value_pages.shape[-1]))
    lse = torch.full(query.shape[:2], -torch.inf)
    bounds = starts.tolist()
    for (first, last), blocks, length in zip(itertools.pairwise(bounds), table, lengths.tolist(), strict=True):
        keys, values = gather(key_pages, blocks, length) * scales[0], gather(value_pages, blocks, length) * scales[1]
        part, lse[first:last] = attend(query[first:last].float(), keys, values, scale, sinks, window)
        out[first:last] = part.to(query.dtype)
    return out, lse
