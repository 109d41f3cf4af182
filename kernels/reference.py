"""Every operator in its plainest form: the slow twins that fast ones are tested against.

Arithmetic is in float32 whatever the inputs are; results have the inputs' type.
"""

from __future__ import annotations

import torch

from .ops import PLAIN, Style
from .pages import Pages, Span
from .twins.paged_attention import attend
from .twins.rms_norm import add_rms_norm as add_rms_norm
from .twins.rms_norm import rms_norm as rms_norm
from .twins.swiglu import swiglu as swiglu


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the pairs (i, i + head_dim/2) of ``x`` (rows, heads, head_dim).

    ``cos`` (rows, 1, head_dim) holds each pair's cosine twice; ``sin`` likewise, its first half negated.
    """
    half = x.shape[-1] // 2
    first, second = x[..., :half].float(), x[..., half:].float()
    c, s = cos[..., half:].float(), sin[..., half:].float()
    return torch.cat((first * c - second * s, second * c + first * s), dim=-1).to(x.dtype)


def store_kv(pool: torch.Tensor, kv: torch.Tensor, pages: Pages) -> None:
    """Write ``kv`` (rows, 2, kv_heads, head_dim) into the layer's ``pool`` at the batch's slots."""
    block_tokens = pool.shape[1]
    for row, slot in enumerate(pages.slots.tolist()):
        pool[slot // block_tokens, slot % block_tokens] = kv[row].to(pool.dtype)


def rope_store(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor,
    pool: torch.Tensor, pages: Pages, start: int = 0,
) -> torch.Tensor:  # fmt: skip
    """See ``ops.RopeStore``: turn the part of each head that ``cos`` is wide enough for, and write key and value."""
    part = slice(start, start + cos.shape[-1])
    turned, turned_key = query.clone(), key.clone()
    turned[..., part], turned_key[..., part] = rope(query[..., part], cos, sin), rope(key[..., part], cos, sin)
    store_kv(pool, turned_key if value is None else torch.stack((turned_key, value), dim=1), pages)
    return turned


def attention(query: torch.Tensor, pool: torch.Tensor, pages: Pages, style: Style = PLAIN) -> torch.Tensor:
    """Causal attention of ``query`` (rows, heads, head_dim) over the batch's pages; the same shape comes back."""
    out = torch.empty_like(query)
    scale = style.scale_of(query.shape[-1])
    for span in pages.spans:
        rows, tokens = slice(span.row, span.row + span.count), _tokens(pool, span)
        keys, values = tokens[:, 0], tokens[:, 1]
        out[rows] = attend(query[rows].float(), keys, values, scale, style.sinks, style.window)[0].to(query.dtype)
    return out


def latent_attention(query: torch.Tensor, pool: torch.Tensor, pages: Pages, latent: int, scale: float) -> torch.Tensor:
    """See ``ops.LatentAttention``."""
    out = query.new_empty((*query.shape[:2], latent))
    for span in pages.spans:
        rows, keys = slice(span.row, span.row + span.count), _tokens(pool, span)
        out[rows] = attend(query[rows].float(), keys, keys[..., :latent], scale)[0].to(query.dtype)
    return out


def _tokens(pool: torch.Tensor, span: Span) -> torch.Tensor:
    """What the pool holds of a span's request up to its last token, in float32."""
    return torch.cat([pool[block] for block in span.blocks])[: span.stop].float()
