"""Rotary embedding (Su et al., 2021), fused with writing keys and values into their pages.

A pair ``(a, b)`` at angle ``t`` becomes ``(a cos t - b sin t, b cos t + a sin t)``. Pairs are ``(i, i + width / 2)``
or, where ``interleaved``, ``(2 i, 2 i + 1)``, within the rotary part; the rest of a head passes through. Tables of
cosines and sines come from ``rope_scaling``. Pages are (blocks, block_tokens, kv_heads, head_dim) with any strides
but neighbouring columns; ``slots`` numbers each row's place block-major, and a slot below 0 (padding) writes nothing.
Pages in eight bits hold ``x / scale``.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import launch
from .platform import Arch, arch_of


@triton.jit
def _turn(
    src_ptr, dst_ptr, src, dst, live, cos, sin, inverse,
    START: tl.constexpr, PAIRS: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Rotate the rotary part of the heads at offsets ``src`` (ROWS,) into those at ``dst``."""
    pair = tl.arange(0, HALF)
    first = START + (2 * pair if INTERLEAVED else pair)
    second = first + (1 if INTERLEAVED else PAIRS)
    inside = live[:, None] & (pair < PAIRS)[None, :]
    a = tl.load(src_ptr + src[:, None] + first[None, :], mask=inside, other=0.0).to(tl.float32)
    b = tl.load(src_ptr + src[:, None] + second[None, :], mask=inside, other=0.0).to(tl.float32)
    kind = dst_ptr.dtype.element_ty
    tl.store(dst_ptr + dst[:, None] + first[None, :], ((a * cos - b * sin) * inverse).to(kind), mask=inside)
    tl.store(dst_ptr + dst[:, None] + second[None, :], ((b * cos + a * sin) * inverse).to(kind), mask=inside)


@triton.jit
def _pass(
    src_ptr, dst_ptr, src, dst, live, inverse,
    START: tl.constexpr, STOP: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Copy what lies outside ``START`` to ``STOP`` of the heads at offsets ``src`` to those at ``dst``."""
    column = tl.arange(0, COLUMNS)
    outside = (column < WIDTH) & ((column < START) | (column >= STOP))
    inside = live[:, None] & outside[None, :]
    x = tl.load(src_ptr + src[:, None] + column[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(dst_ptr + dst[:, None] + column[None, :], (x * inverse).to(dst_ptr.dtype.element_ty), mask=inside)


@triton.jit
def rope_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, k_pages_ptr, v_pages_ptr, slots_ptr, positions_ptr, cos_ptr, sin_ptr, rows,
    table_row, q_row, q_head, k_row, k_head, v_row, v_head, out_row, out_head, kp_block, kp_token, kp_head,
    vp_block, vp_token, vp_head, k_inverse, v_inverse,
    BY_ROW: tl.constexpr, Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    START: tl.constexpr, PAIRS: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr,
    WIDTH: tl.constexpr, V_WIDTH: tl.constexpr, COLUMNS: tl.constexpr, V_COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One program a tile of rows and one head: queries first, then keys, then values."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1)
    live = row < rows
    stop: tl.constexpr = START + 2 * PAIRS
    pair = tl.arange(0, HALF)
    position = row if BY_ROW else tl.load(positions_ptr + row, mask=live, other=0).to(tl.int64)
    table = position[:, None] * table_row + pair[None, :]
    known = live[:, None] & (pair < PAIRS)[None, :]
    if head < Q_HEADS + K_HEADS:
        cos = tl.load(cos_ptr + table, mask=known, other=0.0).to(tl.float32)
        sin = tl.load(sin_ptr + table, mask=known, other=0.0).to(tl.float32)
        if head < Q_HEADS:
            src, dst = row * q_row + head * q_head, row * out_row + head * out_head
            _turn(q_ptr, out_ptr, src, dst, live, cos, sin, 1.0, START, PAIRS, HALF, INTERLEAVED)
            if stop - START < WIDTH:
                _pass(q_ptr, out_ptr, src, dst, live, 1.0, START, stop, WIDTH, COLUMNS)
        elif K_HEADS > 0:
            slot = tl.load(slots_ptr + row, mask=live, other=-1).to(tl.int64)
            at = slot // BLOCK_TOKENS * kp_block + slot % BLOCK_TOKENS * kp_token
            src, dst = row * k_row + (head - Q_HEADS) * k_head, at + (head - Q_HEADS) * kp_head
            _turn(k_ptr, k_pages_ptr, src, dst, slot >= 0, cos, sin, k_inverse, START, PAIRS, HALF, INTERLEAVED)
            if stop - START < WIDTH:
                _pass(k_ptr, k_pages_ptr, src, dst, slot >= 0, k_inverse, START, stop, WIDTH, COLUMNS)
    elif V_WIDTH > 0:
        slot = tl.load(slots_ptr + row, mask=live, other=-1).to(tl.int64)
        at = slot // BLOCK_TOKENS * vp_block + slot % BLOCK_TOKENS * vp_token
        index = head - Q_HEADS - K_HEADS
        src, dst = row * v_row + index * v_head, at + index * vp_head
        _pass(v_ptr, v_pages_ptr, src, dst, slot >= 0, v_inverse, 0, 0, V_WIDTH, V_COLUMNS)


def rope(
    x: torch.Tensor, positions: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor, *,
    start: int = 0, interleaved: bool = False, arch: Arch | None = None,
) -> torch.Tensor:  # fmt: skip
    """Rotate ``x`` (rows, heads, head_dim) at ``positions`` (rows,) from column ``start`` on; the same shape comes
    back. ``cos`` and ``sin`` are (positions, pairs); without ``positions`` they hold each row's own."""
    return _launch(x, None, None, positions, cos, sin, None, None, None, start, interleaved, (1.0, 1.0), arch)


def rope_into_pages(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor | None,
    positions: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor,
    key_pages: torch.Tensor, value_pages: torch.Tensor | None, slots: torch.Tensor, *,
    start: int = 0, interleaved: bool = False, scales: tuple[float, float] = (1.0, 1.0), arch: Arch | None = None,
) -> torch.Tensor:  # fmt: skip
    """Rotate ``query`` (rows, heads, head_dim) and give it back; rotate ``key`` (rows, kv_heads, head_dim) and write
    it, and ``value`` beside it, into their pages. ``value`` is None where keys hold it (MLA). ``scales`` are those of
    keys and values.
    """
    if (value is None) != (value_pages is None):
        raise ValueError("Values and their pages come together or not at all.")
    return _launch(
        query, key, value, positions, cos, sin, key_pages, value_pages, slots, start, interleaved, scales, arch
    )


def _launch(
    query: torch.Tensor, key: torch.Tensor | None, value: torch.Tensor | None,
    positions: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor,
    key_pages: torch.Tensor | None, value_pages: torch.Tensor | None, slots: torch.Tensor | None,
    start: int, interleaved: bool, scales: tuple[float, float], arch: Arch | None,
) -> torch.Tensor:  # fmt: skip
    rows, heads, width = query.shape
    pairs = cos.shape[-1]
    _check(width, start, pairs, (query, key, value, key_pages, value_pages))
    if cos.stride() != sin.stride() or cos.stride(-1) != 1:
        cos, sin = cos.contiguous(), sin.contiguous()
    places = cos if positions is None else positions
    out = torch.empty((rows, heads, width), dtype=query.dtype, device=query.device)
    k = query if key is None else key
    v = k if value is None else value
    k_pages = out[None] if key_pages is None else key_pages
    v_pages = k_pages if value_pages is None else value_pages
    k_heads = 0 if key is None else key.shape[1]
    tile = launch.elementwise(arch or arch_of(query.device), width, rows)
    if rows:
        rope_kernel[(triton.cdiv(rows, tile.rows), heads + k_heads + (0 if value is None else v.shape[1]))](
            query, k, v, out, k_pages, v_pages, places if slots is None else slots, places, cos, sin, rows,
            cos.stride(0), *query.stride()[:2], *k.stride()[:2], *v.stride()[:2], *out.stride()[:2],
            *k_pages.stride()[:3], *v_pages.stride()[:3], 1.0 / scales[0], 1.0 / scales[1],
            BY_ROW=positions is None, Q_HEADS=heads, K_HEADS=k_heads, BLOCK_TOKENS=k_pages.shape[1], START=start,
            PAIRS=pairs, HALF=launch.power_of_two(pairs), INTERLEAVED=interleaved, WIDTH=width,
            V_WIDTH=0 if value is None else v.shape[-1], COLUMNS=tile.columns,
            V_COLUMNS=launch.power_of_two(v.shape[-1]), ROWS=tile.rows, num_warps=tile.warps,
        )  # fmt: skip
    return out


def _check(width: int, start: int, pairs: int, tensors: tuple[torch.Tensor | None, ...]) -> None:
    if start < 0 or start + 2 * pairs > width:
        raise ValueError(f"A rotary part of {2 * pairs} columns from {start} on does not fit heads of {width}.")
    if any(tensor is not None and tensor.stride(-1) != 1 for tensor in tensors):
        raise ValueError("A head's columns must be neighbours in memory.")
