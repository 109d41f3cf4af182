"""The operators in few torch calls, for any device: at small batches the calls cost more than the arithmetic."""

from __future__ import annotations

import torch
from torch.nn import functional

from .pages import Chunk, DecodeGroup, Pages


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See ``reference.rms_norm``. On a CPU torch's own is a composite of ten calls; here one reads the row."""
    if x.device.type != "cpu":
        return functional.rms_norm(x, weight.shape, weight, eps)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    scale = (norm * norm).mul_(1 / x.shape[-1]).add_(eps).rsqrt_()
    normed: torch.Tensor = (x * scale).mul_(weight)
    return normed


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """See ``reference.rope``. Half a turn of the last axis brings each element's partner beside it."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """See ``reference.swiglu``."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)


def store_kv(pool: torch.Tensor, kv: torch.Tensor, pages: Pages) -> None:
    """See ``reference.store_kv``."""
    pool.view(-1, *pool.shape[2:]).index_copy_(0, pages.slots, kv.to(pool.dtype))


def attention(query: torch.Tensor, pool: torch.Tensor, pages: Pages) -> torch.Tensor:
    """See ``reference.attention``."""
    if len(pages.decodes) == 1 and not pages.chunks:
        return _decode(query, pool, pages.decodes[0])
    out = torch.empty_like(query)
    for group in pages.decodes:
        out[group.rows] = _decode(query[group.rows], pool, group)
    for chunk in pages.chunks:
        out[chunk.rows] = _prefill(query[chunk.rows], pool, chunk)
    return out


def _decode(query: torch.Tensor, pool: torch.Tensor, group: DecodeGroup) -> torch.Tensor:
    """All requests at once. The query heads that share a key head stand as its query rows: nothing is repeated."""
    n, heads, head_dim = query.shape
    kv_heads = pool.shape[3]
    pairs = pool.index_select(0, group.blocks).view(n, -1, 2, kv_heads, head_dim).to(query.dtype)
    keys, values = pairs.permute(2, 0, 3, 1, 4)
    grouped = query.view(n, kv_heads, heads // kv_heads, head_dim)
    return functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=group.mask).reshape(query.shape)


def _prefill(query: torch.Tensor, pool: torch.Tensor, chunk: Chunk) -> torch.Tensor:
    pairs = pool.index_select(0, chunk.blocks).flatten(0, 1)[: chunk.stop].to(query.dtype)
    keys, values = pairs.permute(1, 2, 0, 3).unsqueeze(1)
    out = functional.scaled_dot_product_attention(
        query.transpose(0, 1).unsqueeze(0),
        keys,
        values,
        attn_mask=chunk.mask,
        is_causal=chunk.mask is None,
        enable_gqa=True,
    )
    return out.squeeze(0).transpose(0, 1)
