"""Plain form of ``kernels.rope``."""

from __future__ import annotations

import torch


def rope(
    x: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *,
    start: int = 0, interleaved: bool = False,
) -> torch.Tensor:  # fmt: skip
    pairs = cos.shape[-1]
    part = slice(start, start + 2 * pairs)
    wide = x[..., part].float()
    split = (*wide.shape[:-1], pairs, 2) if interleaved else (*wide.shape[:-1], 2, pairs)
    a, b = wide.reshape(split).unbind(-1 if interleaved else -2)
    c, s = cos[positions.long()][:, None], sin[positions.long()][:, None]
    turned = torch.stack((a * c - b * s, b * c + a * s), dim=-1 if interleaved else -2)
    out = x.clone()
    out[..., part] = turned.reshape(wide.shape).to(x.dtype)
    return out


def store(x: torch.Tensor, pages: torch.Tensor, slots: torch.Tensor, scale: float = 1.0) -> None:
    """Write ``x`` (rows, heads, width) at ``slots`` (rows,) of ``pages`` (blocks, block_tokens, heads, width)."""
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            pages[slot // pages.shape[1], slot % pages.shape[1]] = (x[row].float() / scale).to(pages.dtype)


def rope_into_pages(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor | None,
    positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
    key_pages: torch.Tensor, value_pages: torch.Tensor | None, slots: torch.Tensor, *,
    start: int = 0, interleaved: bool = False, scales: tuple[float, float] = (1.0, 1.0),
) -> torch.Tensor:  # fmt: skip
    turned = rope(key.float(), positions, cos, sin, start=start, interleaved=interleaved)
    store(turned, key_pages, slots, scales[0])
    if value is not None and value_pages is not None:
        store(value, value_pages, slots, scales[1])
    return rope(query, positions, cos, sin, start=start, interleaved=interleaved)
