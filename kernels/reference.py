"""Every operator in its plainest form: the slow twins that fast ones are tested against.

Arithmetic is in float32 whatever the inputs are; results have the inputs' type.
"""

from __future__ import annotations

import torch

from .pages import Pages, Span


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last axis (Zhang and Sennrich, 2019)."""
    wide = x.float()
    scale = (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
    return (wide * scale * weight.float()).to(x.dtype)


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the pairs (i, i + head_dim/2) of ``x`` (rows, heads, head_dim).

    ``cos`` (rows, 1, head_dim) holds each pair's cosine twice; ``sin`` likewise, its first half negated.
    """
    half = x.shape[-1] // 2
    first, second = x[..., :half].float(), x[..., half:].float()
    c, s = cos[..., half:].float(), sin[..., half:].float()
    return torch.cat((first * c - second * s, second * c + first * s), dim=-1).to(x.dtype)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` of ``(rows, 2 * width)`` whose first half is the gate."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)


def store_kv(pool: torch.Tensor, kv: torch.Tensor, pages: Pages) -> None:
    """Write ``kv`` (rows, 2, kv_heads, head_dim) into the layer's ``pool`` at the batch's slots."""
    block_tokens = pool.shape[1]
    for row, slot in enumerate(pages.slots.tolist()):
        pool[slot // block_tokens, slot % block_tokens] = kv[row].to(pool.dtype)


def attention(query: torch.Tensor, pool: torch.Tensor, pages: Pages) -> torch.Tensor:
    """Causal attention of ``query`` (rows, heads, head_dim) over the batch's pages; the same shape comes back."""
    out = torch.empty_like(query)
    for span in pages.spans:
        rows = slice(span.row, span.row + span.count)
        out[rows] = _attend(query[rows], pool, span)
    return out


def _attend(query: torch.Tensor, pool: torch.Tensor, span: Span) -> torch.Tensor:
    """Softmax of scaled dot products, key by key, masked to positions that are not in the future."""
    tokens = torch.cat([pool[block] for block in span.blocks])[: span.stop].float()
    repeats = query.shape[1] // pool.shape[3]
    keys = tokens[:, 0].repeat_interleave(repeats, dim=1)
    values = tokens[:, 1].repeat_interleave(repeats, dim=1)
    scores = torch.einsum("qhd,khd->hqk", query.float(), keys) / query.shape[-1] ** 0.5
    position = torch.arange(span.stop, device=query.device)
    future = position[None, :] > position[span.start :, None]
    weights = scores.masked_fill(future, -torch.inf).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values).to(query.dtype)
