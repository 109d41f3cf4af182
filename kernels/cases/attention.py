"""Uses of the operators around attention, at the shapes of Llama-3.1-8B and DeepSeek-V3."""

from __future__ import annotations

from typing import Any

import torch

from .. import kv_copy, merge_states, paged_decode, paged_prefill, rope, rope_scaling, store_rows
from ..platform import Arch
from ..twins import kv_copy as plain_copy
from ..twins import merge_states as plain_merge
from ..twins import paged_attention as plain
from ..twins import rope as plain_rope
from .work import Case, Maker, Work, size_of

_BLOCK = 16


def _merge(make: Maker, small: bool) -> Work:
    parts, rows = (3, 2) if small else (8, 64)
    outs = make.normal(parts, rows, 32, 128, dtype=torch.float32)
    lses = make.normal(parts, rows, 32, dtype=torch.float32)
    return Work(
        lambda outs, lses, arch: merge_states.merge_states(outs, lses, arch=arch),
        plain_merge.merge_states, (outs, lses), size_of(outs, lses) + size_of(outs, lses) // parts,
    )  # fmt: skip


def _pool(make: Maker, blocks: int, heads: int, width: int, fp8: bool) -> tuple[torch.Tensor, torch.Tensor]:
    pool = make.normal(blocks, _BLOCK, 2, heads, width, dtype=make.arch.fp8 if fp8 else None)
    return pool[:, :, 0], pool[:, :, 1]


def _decode(
    make: Maker, small: bool, heads: tuple[int, int] = (32, 8), width: int = 128, window: int = 0, *,
    fp8: bool = False, split: bool = False,
) -> Work:  # fmt: skip
    """``split``: keys cut into parts, as a batch of one is at full size."""
    requests, tokens = (2 if split else 3, 100) if small else (1 if split else 64, 8192)
    heads = (heads[0] // heads[1] * 2, 2) if small else heads
    per = -(-tokens // _BLOCK)
    keys, values = _pool(make, requests * per, heads[1], width, fp8)
    query, table = make.normal(requests, heads[0], width), make.shuffled(requests * per).view(requests, per)
    lengths = make.whole(1, tokens + 1, requests) if small else make.full(tokens, requests)
    sinks = make.normal(heads[0], dtype=torch.float32) if window else None
    options = paged_decode.DecodeOptions(window=window, parts=4 if split and small else None)

    def op(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, t: Any, n: Any, s: Any, arch: Arch) -> Any:
        return paged_decode.paged_decode(q, k, v, t, n, width**-0.5, s, options, arch=arch)

    def twin(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, t: Any, n: Any, s: Any) -> Any:
        return plain.paged_decode(q, k, v, t, n, width**-0.5, s, window)

    read = requests * min(tokens, window or tokens) * 2 * heads[1] * width * keys.element_size()
    return Work(op, twin, (query, keys, values, table, lengths, sinks), read + 2 * size_of(query))


def _mla(make: Maker, small: bool, split: bool = False) -> Work:
    requests, tokens, heads = (1 if split else 3, 100, 20) if small else (1 if split else 64, 8192, 128)
    per = -(-tokens // _BLOCK)
    pages, query = make.normal(requests * per, _BLOCK, 1, 576), make.normal(requests, heads, 576)
    table = make.shuffled(requests * per).view(requests, per)
    lengths = make.whole(1, tokens + 1, requests) if small else make.full(tokens, requests)
    scale, options = 192**-0.5, paged_decode.DecodeOptions(parts=4 if split and small else None)
    return Work(
        lambda q, p, t, n, arch: paged_decode.mla_decode(q, p, t, n, scale, 64, options, arch=arch),
        lambda q, p, t, n: plain.mla_decode(q, p, t, n, scale),
        (query, pages, table, lengths), size_of(pages, query), 2 * requests * heads * tokens * (576 + 512),
    )  # fmt: skip


def _prefill(make: Maker, small: bool, heads: tuple[int, int] = (32, 8), width: int = 128, window: int = 0) -> Work:
    rows, tokens = ([1, 70, 9], 80) if small else ([8192], 8192)
    heads = (2, 1) if small else heads
    per = -(-tokens // _BLOCK)
    keys, values = _pool(make, len(rows) * per, heads[1], width, False)
    query, table = make.normal(sum(rows), heads[0], width), make.shuffled(len(rows) * per).view(len(rows), per)
    starts = torch.tensor([0, *rows]).cumsum(0).int().to(make.device)
    lengths = make.full(tokens, len(rows))
    sinks = make.normal(heads[0], dtype=torch.float32) if window else None

    def op(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, t: Any, r: Any, n: Any, s: Any, arch: Arch) -> Any:
        return paged_prefill.paged_prefill(q, k, v, t, r, n, max(rows), width**-0.5, s, window, arch=arch)

    def twin(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, t: Any, r: Any, n: Any, s: Any) -> Any:
        return plain.paged_prefill(q, k, v, t, r, n, width**-0.5, s, window)

    pairs = sum(count * (2 * tokens - count + 1) // 2 for count in rows)
    moved = 2 * size_of(query) + len(rows) * tokens * 2 * heads[1] * width * keys.element_size()
    return Work(op, twin, (query, keys, values, table, starts, lengths, sinks), moved, 4 * pairs * heads[0] * width)


def _mla_prefill(make: Maker, small: bool) -> Work:
    rows, tokens, heads = ([1, 33], 50, 2) if small else ([2048], 8192, 128)
    per = -(-tokens // _BLOCK)
    pages, query = make.normal(len(rows) * per, _BLOCK, 1, 576), make.normal(sum(rows), heads, 576)
    table = make.shuffled(len(rows) * per).view(len(rows), per)
    starts, lengths = torch.tensor([0, *rows]).cumsum(0).int().to(make.device), make.full(tokens, len(rows))
    scale, pairs = 192**-0.5, sum(count * (2 * tokens - count + 1) // 2 for count in rows)

    def op(q: Any, p: Any, t: Any, r: Any, n: Any, arch: Arch) -> Any:
        return paged_prefill.latent_prefill(q, p, t, r, n, max(rows), scale, arch=arch)

    def twin(q: Any, p: Any, t: Any, r: Any, n: Any) -> Any:
        return plain.paged_prefill(q, p, p[..., :512], t, r, n, scale)

    moved = size_of(pages, query) + size_of(query) * 512 // 576
    return Work(op, twin, (query, pages, table, starts, lengths), moved, 2 * pairs * heads * (576 + 512))


def _rope(make: Maker, small: bool) -> Work:
    rows, heads, kv_heads = (9, 4, 2) if small else (8192, 32, 8)
    keys, values = _pool(make, rows // _BLOCK + 1, kv_heads, 128, False)
    query, key, value = (make.normal(rows, n, 128) for n in (heads, kv_heads, kv_heads))
    cos, sin = (table.to(make.device) for table in rope_scaling.rotary_tables(128, 500_000.0, 64 if small else 8192))
    positions, slots = make.whole(0, len(cos), rows), make.shuffled(rows)

    def op(q: Any, k: Any, v: Any, at: Any, c: Any, s: Any, kp: Any, vp: Any, to: Any, arch: Arch) -> Any:
        return rope.rope_into_pages(q, k, v, at, c, s, kp, vp, to, arch=arch), kp, vp

    def twin(q: Any, k: Any, v: Any, at: Any, c: Any, s: Any, kp: Any, vp: Any, to: Any) -> Any:
        return plain_rope.rope_into_pages(q, k, v, at, c, s, kp, vp, to), kp, vp

    return Work(op, twin, (query, key, value, positions, cos, sin, keys, values, slots), 2 * size_of(query, key, value))


def _rope_by_row(make: Maker, small: bool) -> Work:
    """As an engine's layer calls it: angles of the rows rather than tables, whole heads turned."""
    rows, heads, kv_heads = (5, 4, 2) if small else (64, 32, 8)
    keys, values = _pool(make, rows // _BLOCK + 1, kv_heads, 128, False)
    query, key, value = (make.normal(rows, n, 128) for n in (heads, kv_heads, kv_heads))
    angle = make.normal(rows, 64, dtype=torch.float32)
    slots = make.shuffled(rows)

    def op(q: Any, k: Any, v: Any, a: Any, kp: Any, vp: Any, to: Any, arch: Arch) -> Any:
        return rope.rope_into_pages(q, k, v, None, a.cos(), a.sin(), kp, vp, to, arch=arch), kp, vp

    def twin(q: Any, k: Any, v: Any, a: Any, kp: Any, vp: Any, to: Any) -> Any:
        return plain_rope.rope_into_pages(q, k, v, torch.arange(rows), a.cos(), a.sin(), kp, vp, to), kp, vp

    return Work(op, twin, (query, key, value, angle, keys, values, slots), 2 * size_of(query, key, value))


def _store(make: Maker, small: bool) -> Work:
    rows, width = (9, 576) if small else (8192, 576)
    x, target, slots = make.normal(rows, width), make.normal(2 * rows, width), make.shuffled(rows)

    def op(x: Any, target: Any, slots: Any, arch: Arch) -> Any:
        store_rows.store_rows(x, target, slots, arch=arch)
        return (target,)

    def twin(x: Any, target: Any, slots: Any) -> Any:
        target[slots.long()] = x
        return (target,)

    return Work(op, twin, (x, target, slots), 2 * size_of(x))


def _copy(make: Maker, small: bool) -> Work:
    blocks = 5 if small else 4096
    source = make.normal(blocks, _BLOCK, 2, 8, 128)
    target = make.normal(blocks, 2, 8, _BLOCK, 128).permute(0, 3, 1, 2, 4)
    ids = make.shuffled(blocks), make.shuffled(blocks)

    def op(a: Any, b: Any, i: Any, j: Any, arch: Arch) -> Any:
        kv_copy.copy_blocks(a, b, i, j, arch=arch)
        return (b,)

    def twin(a: Any, b: Any, i: Any, j: Any) -> Any:
        plain_copy.copy_blocks(a, b, i, j)
        return (b,)

    return Work(op, twin, (source, target, *ids), 2 * size_of(source))


_BF16 = (torch.bfloat16,)
"""Of uses beside another of the same kernel that is compiled in 16 bits of both kinds."""
CASES = (
    Case("merge_states", _merge, (torch.float32,)),
    Case("paged_decode", _decode),
    Case("paged_decode_fp8", lambda make, small: _decode(make, small, fp8=True), _BF16, needs_fp8=True),
    Case("paged_decode_window_64", lambda make, small: _decode(make, small, (64, 8), 64, 128), _BF16),
    Case("paged_decode_256", lambda make, small: _decode(make, small, (16, 2), 256), _BF16),
    Case("paged_decode_split", lambda make, small: _decode(make, small, split=True), _BF16),
    Case("mla_decode", _mla),
    Case("mla_decode_split", lambda make, small: _mla(make, small, split=True), _BF16),
    Case("paged_prefill", _prefill),
    Case("mla_prefill", _mla_prefill, _BF16),
    Case("paged_prefill_window_64", lambda make, small: _prefill(make, small, (64, 8), 64, 128), _BF16),
    Case("paged_prefill_256", lambda make, small: _prefill(make, small, (16, 2), 256), _BF16),
    Case("rope_into_pages", _rope),
    Case("rope_by_row", _rope_by_row, _BF16),
    Case("store_rows", _store, _BF16),
    Case("copy_blocks", _copy, _BF16),
)
