"""Causal attention of many new tokens per request over its pages: whole prompts, chunks, and prompts behind a cached
prefix.

The new tokens' keys are in the pages already, so a chunk, a cached prefix and a fresh prompt are one case: query row
``i`` of a request with ``rows`` new tokens out of ``length`` stands at position ``length - rows + i`` and sees the
positions up to its own, the last ``window`` of them where there is a window. Requests of any lengths lie end to end
in the queries. Sinks, scales and the log-sum-exp as in ``paged_decode``, and as there ``latent_prefill`` is the form
for absorbed MLA, where a key's first columns are the values too.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import launch
from .online_softmax import LOG2_E, finish_rows, start_rows, take_scores
from .paged_decode import _pages_at, _tile
from .platform import Arch, arch_of


@triton.jit
def _walk(
    q, q_turned, k_ptr, v_ptr, table_ptr, seen_from, seen_to, first, last, top, total, acc, scale,
    k_block, k_token, v_block, v_token, BLOCK_TOKENS: tl.constexpr,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROPE: tl.constexpr, V_WIDTH: tl.constexpr, V_COLUMNS: tl.constexpr,
    MASKED: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Take in the keys from ``first`` to ``last``; a row sees those from ``seen_from`` to ``seen_to`` (exclusive) of
    them.

    Without ``MASKED`` the caller vouches that every row sees every key and that the range is whole tiles.
    """
    for start in range(first, last, KEYS):
        position = start + tl.arange(0, KEYS)
        there = position < last
        k_at = _pages_at(table_ptr, position, there, k_block, k_token, BLOCK_TOKENS)
        k = _tile(k_ptr, k_at, there, q.dtype, WIDTH, COLUMNS)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        if ROPE > 0:
            turned = _tile(k_ptr, k_at + WIDTH, there, q.dtype, ROPE, ROPE)
            scores = tl.dot(q_turned, tl.trans(turned), scores, input_precision="ieee")
            v = k
        else:
            v_at = _pages_at(table_ptr, position, there, v_block, v_token, BLOCK_TOKENS)
            v = _tile(v_ptr, v_at, there, q.dtype, V_WIDTH, V_COLUMNS)
        scores *= scale
        if MASKED:
            seen = (position[None, :] < seen_to[:, None]) & (position[None, :] >= seen_from[:, None]) & there[None, :]
            scores = tl.where(seen, scores, float("-inf"))
        weights, top, total, acc = take_scores(scores, top, total, acc)
        acc = tl.dot(weights.to(q.dtype), v, acc, input_precision="ieee")
    return top, total, acc


@triton.jit
def paged_prefill_kernel(
    q_ptr, k_ptr, v_ptr, table_ptr, starts_ptr, lengths_ptr, sinks_ptr, out_ptr, lse_ptr,
    q_row, q_head, k_block, k_token, k_head, v_block, v_token, v_head, table_row, heads,
    scale, v_scale, window, GROUP: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROPE: tl.constexpr, V_WIDTH: tl.constexpr, V_COLUMNS: tl.constexpr,
    SINKS: tl.constexpr, WINDOWED: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """One program a tile of query rows, a head and a request; the longest rows start first."""
    request, head = tl.program_id(2).to(tl.int64), tl.program_id(1)
    begin = tl.load(starts_ptr + request).to(tl.int32)
    rows = tl.load(starts_ptr + request + 1).to(tl.int32) - begin
    first_row = (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES
    if first_row >= rows:
        return
    length = tl.load(lengths_ptr + request).to(tl.int32)
    index = first_row + tl.arange(0, QUERIES)
    live = index < rows
    position = length - rows + index
    row = (begin + index).to(tl.int64)
    q = _tile(q_ptr, row * q_row + head * q_head, live, q_ptr.dtype.element_ty, WIDTH, COLUMNS)
    q_turned = q
    if ROPE > 0:
        q_turned = _tile(q_ptr, row * q_row + head * q_head + WIDTH, live, q_ptr.dtype.element_ty, ROPE, ROPE)
    top, total = start_rows(sinks_ptr, tl.zeros((QUERIES,), tl.int32) + head, live, live, SINKS, QUERIES)
    acc = tl.zeros((QUERIES, V_COLUMNS), tl.float32)
    table_ptr += request * table_row
    k_ptr += head // GROUP * k_head
    v_ptr += head // GROUP * v_head
    seen_from, seen_to = position - window + 1, position + 1
    low = tl.maximum(length - rows + first_row - window + 1, 0)
    last = tl.minimum(length - rows + first_row + QUERIES, length)
    masked_from = low
    if not WINDOWED:
        masked_from = (length - rows + first_row + 1) // KEYS * KEYS
        top, total, acc = _walk(
            q, q_turned, k_ptr, v_ptr, table_ptr, seen_from, seen_to, low, masked_from, top, total, acc, scale,
            k_block, k_token, v_block, v_token, BLOCK_TOKENS, WIDTH, COLUMNS, ROPE, V_WIDTH, V_COLUMNS, False, KEYS,
        )  # fmt: skip
    top, total, acc = _walk(
        q, q_turned, k_ptr, v_ptr, table_ptr, seen_from, seen_to, masked_from, last, top, total, acc, scale,
        k_block, k_token, v_block, v_token, BLOCK_TOKENS, WIDTH, COLUMNS, ROPE, V_WIDTH, V_COLUMNS, True, KEYS,
    )  # fmt: skip
    result, lse = finish_rows(top, total, acc)
    column = tl.arange(0, V_COLUMNS)
    inside = live[:, None] & (column < V_WIDTH)[None, :]
    at = (row * heads + head)[:, None] * V_WIDTH + column[None, :]
    tl.store(out_ptr + at, (result * v_scale).to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(lse_ptr + row * heads + head, lse, mask=live)


def paged_prefill(
    query: torch.Tensor, key_pages: torch.Tensor, value_pages: torch.Tensor, table: torch.Tensor,
    starts: torch.Tensor, lengths: torch.Tensor, max_rows: int, scale: float, sinks: torch.Tensor | None = None,
    window: int = 0, scales: tuple[float, float] = (1.0, 1.0), *, out: torch.Tensor | None = None,
    tile: launch.Attention | None = None, arch: Arch | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Attention of ``query`` (rows, heads, head_dim), request ``r`` owning rows ``starts[r]`` to ``starts[r + 1]``.

    ``starts`` (requests + 1,) and ``lengths`` (requests,) int32, the latter with the new tokens included;
    ``max_rows`` bounds any request's rows; ``table`` (requests, blocks) int32; ``scales`` undo those of eight-bit
    keys and values; ``out`` is written to where given. Gives the output (rows, heads, value width) and its
    log-sum-exp (rows, heads).
    """
    if query.shape[1] % key_pages.shape[2] or query.shape[2] != key_pages.shape[3]:
        raise ValueError(f"Queries {tuple(query.shape)} do not fit key pages {tuple(key_pages.shape)}.")
    tile = tile or launch.prefill_attention(arch or arch_of(query.device), query.shape[2], query.element_size())
    return _launch(
        query, key_pages, value_pages, table, starts, lengths, max_rows, scale, sinks, window, scales, out, tile, 0
    )


def latent_prefill(
    query: torch.Tensor, pages: torch.Tensor, table: torch.Tensor, starts: torch.Tensor, lengths: torch.Tensor,
    max_rows: int, scale: float, rope_width: int = 64, *, out: torch.Tensor | None = None,
    tile: launch.Attention | None = None, arch: Arch | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The same for absorbed MLA: ``query`` (rows, heads, latent + rope_width) over ``pages`` (blocks, block_tokens, 1,
    latent + rope_width), whose first ``latent`` columns are the values. Gives the output (rows, heads, latent) and its
    log-sum-exp."""
    if pages.shape[2] != 1 or query.shape[2] != pages.shape[3] or launch.power_of_two(rope_width) != rope_width:
        raise ValueError(f"Queries {tuple(query.shape)} do not fit latent pages {tuple(pages.shape)}.")
    latent = pages.shape[3] - rope_width
    tile = tile or launch.latent_prefill_attention(arch or arch_of(query.device), latent, query.element_size())
    return _launch(
        query, pages, pages[..., :latent], table, starts, lengths, max_rows, scale, None, 0, (1.0, 1.0), out, tile,
        rope_width,
    )  # fmt: skip


def _launch(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, table: torch.Tensor, starts: torch.Tensor,
    lengths: torch.Tensor, max_rows: int, scale: float, sinks: torch.Tensor | None, window: int,
    scales: tuple[float, float], out: torch.Tensor | None, tile: launch.Attention, rope: int,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    if any(tensor.stride(-1) != 1 for tensor in (query, keys, values, table)):
        raise ValueError("Columns of queries, pages and table must be neighbours in memory.")
    rows, heads, _ = query.shape
    width, v_width = keys.shape[3] - rope, values.shape[3]
    shape = (rows, heads, v_width)
    out = torch.empty(shape, dtype=query.dtype, device=query.device) if out is None else out
    if out.shape != shape or not out.is_contiguous():
        raise ValueError(f"The output must be {shape} and contiguous, not {tuple(out.shape)}.")
    lse = torch.empty((rows, heads), dtype=torch.float32, device=query.device)
    if rows:
        paged_prefill_kernel[(triton.cdiv(max_rows, tile.queries), heads, lengths.shape[0])](
            query, keys, values, table, starts, lengths, lse if sinks is None else sinks, out, lse,
            *query.stride()[:2], *keys.stride()[:3], *values.stride()[:3], table.stride(0), heads,
            scale * scales[0] * LOG2_E, scales[1], window or 1 << 30, GROUP=heads // keys.shape[2],
            BLOCK_TOKENS=keys.shape[1], WIDTH=width, COLUMNS=launch.power_of_two(width), ROPE=rope, V_WIDTH=v_width,
            V_COLUMNS=launch.power_of_two(v_width), SINKS=sinks is not None, WINDOWED=window > 0,
            QUERIES=tile.queries, KEYS=tile.keys, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return out, lse
