"""Attention of one new token per request over its pages: GQA, MQA and, absorbed, MLA.

For query head ``h`` of group ``g``: ``o = sum_j softmax_j(scale q . k_j) v_j`` over the request's positions ``j``,
the last ``window`` of them where there is a window; a sink adds ``exp(sink_h)`` to the denominator. The log-sum-exp
comes back with it, so that results over parts of the keys can be merged (``merge_states``).

Pages are (blocks, block_tokens, kv_heads, width), any strides but neighbouring columns, in the queries' type or in
eight bits (values ``x * scale``). A request's keys are cut into ``parts`` where requests x heads alone do not fill
the device; the cut depends on shapes only, never on lengths, so a captured graph stays valid. A length of 0 gives
output 0.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from . import launch
from .merge_states import merge_states
from .online_softmax import LOG2_E, finish_rows, start_rows, take_scores
from .platform import Arch, arch_of, multiprocessors


@triton.jit
def _pages_at(table_ptr, position, there, block, token, BLOCK_TOKENS: tl.constexpr):
    """Offsets of the tokens at ``position`` in a pool with these strides; 64 bits, since pools pass 2^31 elements."""
    page = tl.load(table_ptr + position // BLOCK_TOKENS, mask=there, other=0).to(tl.int64)
    return page * block + (position % BLOCK_TOKENS) * token


@triton.jit
def _tile(base_ptr, at, there, kind, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows of ``WIDTH`` columns at offsets ``at``, as (rows, COLUMNS) of ``kind``; 0 outside."""
    column = tl.arange(0, COLUMNS)
    inside = there[:, None] & (column < WIDTH)[None, :]
    return tl.load(base_ptr + at[:, None] + column[None, :], mask=inside, other=0.0).to(kind)


@triton.jit
def _share(begin, length, part, PARTS: tl.constexpr, KEYS: tl.constexpr):
    """The positions of one part: whole tiles, so that each tile visited has at least one key."""
    each = tl.cdiv(tl.cdiv(length - begin, PARTS), KEYS) * KEYS
    first = begin + part * each
    return first, tl.minimum(first + each, length)


@triton.jit
def paged_decode_kernel(
    q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, sinks_ptr, out_ptr, lse_ptr,
    q_row, q_head, k_block, k_token, k_head, v_block, v_token, v_head, table_row, heads, out_part, lse_part,
    scale, v_scale, window, GROUP: tl.constexpr, TILES: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROPE: tl.constexpr, V_WIDTH: tl.constexpr, V_COLUMNS: tl.constexpr,
    SINKS: tl.constexpr, PARTS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """One program a request, a tile of query heads that share a key head, and a part of the keys.

    ``ROPE`` > 0 means MLA: keys carry that many more columns after the first ``WIDTH``, and these are the values too.
    """
    request, part = tl.program_id(0).to(tl.int64), tl.program_id(2)
    kv_head = tl.program_id(1) // TILES
    member = tl.program_id(1) % TILES * QUERIES + tl.arange(0, QUERIES)
    live = member < GROUP
    head = kv_head * GROUP + member
    kind = q_ptr.dtype.element_ty
    length = tl.load(lengths_ptr + request).to(tl.int32)
    begin = tl.maximum(length - window, 0)
    first, last = _share(begin, length, part, PARTS, KEYS)
    q_at = request * q_row + head * q_head
    q = _tile(q_ptr, q_at, live, kind, WIDTH, COLUMNS)
    if ROPE > 0:
        q_turned = _tile(q_ptr, q_at + WIDTH, live, kind, ROPE, ROPE)
    top, total = start_rows(sinks_ptr, head, live, part == 0, SINKS, QUERIES)
    acc = tl.zeros((QUERIES, V_COLUMNS), tl.float32)
    for start in range(first, last, KEYS):
        position = start + tl.arange(0, KEYS)
        there = position < last
        at = _pages_at(table_ptr + request * table_row, position, there, k_block, k_token, BLOCK_TOKENS)
        at += kv_head * k_head
        k = _tile(k_ptr, at, there, kind, WIDTH, COLUMNS)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        if ROPE > 0:
            scores = tl.dot(
                q_turned, tl.trans(_tile(k_ptr, at + WIDTH, there, kind, ROPE, ROPE)), scores, input_precision="ieee"
            )
            v = k
        else:
            v_at = _pages_at(table_ptr + request * table_row, position, there, v_block, v_token, BLOCK_TOKENS)
            v = _tile(v_ptr, v_at + kv_head * v_head, there, kind, V_WIDTH, V_COLUMNS)
        scores = tl.where(there[None, :], scores * scale, float("-inf"))
        weights, top, total, acc = take_scores(scores, top, total, acc)
        acc = tl.dot(weights.to(kind), v, acc, input_precision="ieee")
    result, lse = finish_rows(top, total, acc)
    row = part * out_part + (request * heads + head) * V_WIDTH
    column = tl.arange(0, V_COLUMNS)
    inside = live[:, None] & (column < V_WIDTH)[None, :]
    tl.store(out_ptr + row[:, None] + column[None, :], (result * v_scale).to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(lse_ptr + part * lse_part + request * heads + head, lse, mask=live)


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """What bends decode attention. ``window`` 0 means none; ``max_tokens`` None means all that the table can hold;
    ``key_scale`` and ``value_scale`` undo those of eight-bit pages; ``parts``, ``tile``: None asks ``launch``."""

    window: int = 0
    max_tokens: int | None = None
    key_scale: float = 1.0
    value_scale: float = 1.0
    parts: int | None = None
    tile: launch.Attention | None = None


PLAIN = DecodeOptions()


def paged_decode(
    query: torch.Tensor, key_pages: torch.Tensor, value_pages: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor,
    scale: float, sinks: torch.Tensor | None = None, options: DecodeOptions = PLAIN, *, arch: Arch | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Attention of ``query`` (requests, heads, head_dim) over ``key_pages`` and ``value_pages``.

    ``table`` (requests, blocks) int32 lists each request's pages, ``lengths`` (requests,) int32 its tokens, the new one
    included; ``sinks`` (heads,). Gives the output (requests, heads, value width) and its log-sum-exp (requests, heads).
    """
    arch = arch or arch_of(query.device)
    heads, kv_heads = query.shape[1], key_pages.shape[2]
    if heads % kv_heads or query.shape[2] != key_pages.shape[3]:
        raise ValueError(f"Queries {tuple(query.shape)} do not fit key pages {tuple(key_pages.shape)}.")
    tile = options.tile or launch.decode_attention(arch, heads // kv_heads, key_pages.shape[3], query.element_size())
    return _launch(query, key_pages, value_pages, table, lengths, scale, sinks, options, tile, 0, arch)


def mla_decode(
    query: torch.Tensor, pages: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor, scale: float,
    rope_width: int = 64, options: DecodeOptions = PLAIN, *, arch: Arch | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Multi-head latent attention with the key up-projection absorbed into the query (DeepSeek-V2, 2024).

    ``query`` (requests, heads, latent + rope_width) meets ``pages`` (blocks, block_tokens, 1, latent + rope_width),
    whose first ``latent`` columns are the values as well. Gives the output (requests, heads, latent) and its
    log-sum-exp.
    """
    arch = arch or arch_of(query.device)
    if pages.shape[2] != 1 or query.shape[2] != pages.shape[3] or launch.power_of_two(rope_width) != rope_width:
        raise ValueError(f"Queries {tuple(query.shape)} do not fit latent pages {tuple(pages.shape)}.")
    tile = options.tile or launch.latent_attention(
        arch, query.shape[1], pages.shape[3] - rope_width, query.element_size()
    )
    return _launch(query, pages, pages, table, lengths, scale, None, options, tile, rope_width, arch)


def _launch(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor,
    scale: float, sinks: torch.Tensor | None, options: DecodeOptions, tile: launch.Attention, rope: int, arch: Arch,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    if any(tensor.stride(-1) != 1 for tensor in (query, keys, values, table)):
        raise ValueError("Columns of queries, pages and table must be neighbours in memory.")
    requests, heads, _ = query.shape
    width, v_width = keys.shape[3] - rope, values.shape[3] - rope
    tiles = launch.ceil_div(heads // keys.shape[2], tile.queries)
    programs = requests * keys.shape[2] * tiles
    capacity = min(options.max_tokens or table.shape[1] * keys.shape[1], options.window or 1 << 30)
    parts = options.parts or launch.splits(programs, capacity, tile.keys, multiprocessors(query.device, arch))
    kind = query.dtype if parts == 1 else torch.float32
    outs = torch.empty((parts, requests, heads, v_width), dtype=kind, device=query.device)
    lses = torch.empty((parts, requests, heads), dtype=torch.float32, device=query.device)
    if programs:
        paged_decode_kernel[(requests, keys.shape[2] * tiles, parts)](
            query, keys, values, table, lengths, lses if sinks is None else sinks, outs, lses,
            *query.stride()[:2], *keys.stride()[:3], *values.stride()[:3], table.stride(0), heads,
            outs.stride(0), lses.stride(0), scale * options.key_scale * LOG2_E, options.value_scale,
            options.window or 1 << 30, GROUP=heads // keys.shape[2], TILES=tiles, BLOCK_TOKENS=keys.shape[1],
            WIDTH=width, COLUMNS=launch.power_of_two(width), ROPE=rope, V_WIDTH=v_width,
            V_COLUMNS=launch.power_of_two(v_width), SINKS=sinks is not None, PARTS=parts,
            QUERIES=tile.queries, KEYS=tile.keys, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return (outs[0], lses[0]) if parts == 1 else merge_states(outs, lses, query.dtype, arch=arch)
