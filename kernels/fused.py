"""The operators in few torch calls, for any device: at small batches the calls cost more than the arithmetic."""

from __future__ import annotations

import torch
from torch.nn import functional

from .ops import PLAIN, Style
from .pages import Chunk, DecodeGroup, Pages


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See ``reference.rms_norm``. On a CPU torch's own is a composite of ten calls; here one reads the row."""
    if x.device.type != "cpu":
        return functional.rms_norm(x, weight.shape, weight, eps)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    scale = (norm * norm).mul_(1 / x.shape[-1]).add_(eps).rsqrt_()
    normed: torch.Tensor = (x * scale).mul_(weight)
    return normed


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``reference.add_rms_norm``; the sum is written over ``residual``."""
    residual.add_(x)
    return rms_norm(residual, weight, eps), residual


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """See ``reference.rope``. Half a turn of the last axis brings each element's partner beside it."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin).to(x.dtype)


def rope_store(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor,
    pool: torch.Tensor, pages: Pages, start: int = 0,
) -> torch.Tensor:  # fmt: skip
    """See ``ops.RopeStore``."""
    turned = rope_part(key, cos, sin, start)
    store_kv(pool, turned if value is None else torch.stack((turned, value), dim=1), pages)
    return rope_part(query, cos, sin, start)


def rope_part(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, start: int) -> torch.Tensor:
    """``x`` with the columns from ``start`` on turned that ``cos`` is wide enough for."""
    stop = start + cos.shape[-1]
    if stop - start == x.shape[-1]:
        return rope(x, cos, sin)
    return torch.cat((x[..., :start], rope(x[..., start:stop], cos, sin), x[..., stop:]), dim=-1)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """See ``reference.swiglu``."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)


def store_kv(pool: torch.Tensor, kv: torch.Tensor, pages: Pages) -> None:
    """See ``reference.store_kv``."""
    pool.view(-1, *pool.shape[2:]).index_copy_(0, pages.slots, kv.to(pool.dtype))


def attention(query: torch.Tensor, pool: torch.Tensor, pages: Pages, style: Style = PLAIN) -> torch.Tensor:
    """See ``reference.attention``."""
    if len(pages.decodes) == 1 and not pages.chunks:
        return _decode(query, pool, pages.decodes[0], style)
    out = torch.empty_like(query)
    for group in pages.decodes:
        out[group.rows] = _decode(query[group.rows], pool, group, style)
    for chunk in pages.chunks:
        out[chunk.rows] = _prefill(query[chunk.rows], pool, chunk, style)
    return out


def latent_attention(query: torch.Tensor, pool: torch.Tensor, pages: Pages, latent: int, scale: float) -> torch.Tensor:
    """See ``ops.LatentAttention``: every head reads the same keys, so heads stand as query rows."""
    out = query.new_empty((*query.shape[:2], latent))
    for group in pages.decodes:
        keys = pool.index_select(0, group.blocks).view(len(group.lengths), 1, -1, pool.shape[-1]).to(query.dtype)
        out[group.rows] = functional.scaled_dot_product_attention(
            query[group.rows].unsqueeze(1), keys, keys[..., :latent], attn_mask=group.mask, scale=scale
        ).squeeze(1)
    for chunk in pages.chunks:
        keys = pool.index_select(0, chunk.blocks).view(1, -1, pool.shape[-1])[:, : chunk.stop].to(query.dtype)
        rows = query[chunk.rows].transpose(0, 1)
        seen = functional.scaled_dot_product_attention(
            rows, keys.expand(len(rows), -1, -1), keys[..., :latent].expand(len(rows), -1, -1),
            attn_mask=chunk.mask, is_causal=chunk.mask is None, scale=scale,
        )  # fmt: skip
        out[chunk.rows] = seen.transpose(0, 1)
    return out


def _decode(query: torch.Tensor, pool: torch.Tensor, group: DecodeGroup, style: Style) -> torch.Tensor:
    """All requests at once. The query heads that share a key head stand as its query rows: nothing is repeated."""
    n, heads, head_dim = query.shape
    kv_heads = pool.shape[3]
    pairs = pool.index_select(0, group.blocks).view(n, -1, 2, kv_heads, head_dim).to(query.dtype)
    keys, values = pairs.permute(2, 0, 3, 1, 4)
    grouped, mask = query.view(n, kv_heads, heads // kv_heads, head_dim), group.mask_of(style.window)
    if style.sinks is not None:
        out = _with_sinks(grouped, keys, values, mask, style, style.sinks.view(1, kv_heads, -1, 1))
    else:
        out = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=style.scale)
    return out.reshape(query.shape)


def _prefill(query: torch.Tensor, pool: torch.Tensor, chunk: Chunk, style: Style) -> torch.Tensor:
    pairs = pool.index_select(0, chunk.blocks).flatten(0, 1)[: chunk.stop].to(query.dtype)
    keys, values = pairs.permute(1, 2, 0, 3).unsqueeze(1)
    if style.sinks is not None:
        kv_heads = pool.shape[3]
        grouped = query.transpose(0, 1).reshape(kv_heads, -1, *query.shape[::2])
        mask, sinks = chunk.full_mask(style.window, query), style.sinks.view(kv_heads, -1, 1, 1)
        out = _with_sinks(grouped, keys.transpose(0, 1), values.transpose(0, 1), mask, style, sinks)
        return out.flatten(0, 1).transpose(0, 1)
    mask_or_none = chunk.mask_of(style.window)
    out = functional.scaled_dot_product_attention(
        query.transpose(0, 1).unsqueeze(0),
        keys,
        values,
        attn_mask=mask_or_none,
        is_causal=mask_or_none is None,
        scale=style.scale,
        enable_gqa=True,
    )
    return out.squeeze(0).transpose(0, 1)


def _with_sinks(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, style: Style, sinks: torch.Tensor
) -> torch.Tensor:
    """A sink is one more score of each row, without a value; torch's own attention knows none."""
    scores = (query * style.scale_of(query.shape[-1])) @ keys.transpose(-1, -2) + mask
    column = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
    return torch.cat((scores, column), dim=-1).softmax(dim=-1)[..., :-1] @ values
