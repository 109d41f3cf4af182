"""The gated delta rule (see ``gated_delta``) for prompts: a chunk of tokens at a time, so that matrix units do the
work.

Within a chunk let ``G_i`` be the sum of the log decays up to token ``i`` and ``S`` the state before the chunk.
Unrolling the rule gives a unit lower triangular system for the updates ``u`` and then everything else as products::

    u_i + b_i sum_{j<i} (k_i exp(G_i - G_j) . k_j) u_j = b_i (v_i - (k_i exp(G_i)) S)
    o_i = scale ((q_i exp(G_i)) S + sum_{j<=i} (q_i exp(G_i - G_j) . k_j) u_j)
    S' = exp(G_last) S + sum_j (k_j exp(G_last - G_j)) u_j^T

Every exponent is at most 0, also for KDA, where ``exp(G_i - G_j)`` differs by column and is formed pair by pair
rather than split into two factors of which one could overflow. The system is solved row by row: inverting by squaring
loses digits when keys repeat.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from .gated_delta import launch_delta
from .platform import Arch, arch_of
from .sequences import Sequences

CHUNK = 16
"""Tokens a step; blocks whose states are to be kept must be whole chunks."""


@triton.jit
def _scalar_pairs(q, k, total, C: tl.constexpr, PRECISION: tl.constexpr):
    """``k_i . k_j`` and ``q_i . k_j``, each times ``exp(G_i - G_j)``, for ``j <= i``; one decay a token."""
    lane = tl.arange(0, C)
    gap = tl.where(lane[:, None] >= lane[None, :], total[:, None] - total[None, :], float("-inf"))
    faded = tl.exp(gap)
    turned = tl.trans(k)
    kk = tl.dot(k, turned, input_precision=PRECISION) * faded
    return kk, tl.dot(q, turned, input_precision=PRECISION) * faded


@triton.jit
def _vector_pairs(q, k, total, C: tl.constexpr):
    """The same where every key column has a decay of its own: column ``j`` of both at a time."""
    lane = tl.arange(0, C)
    kk = tl.zeros((C, C), tl.float32)
    qk = tl.zeros((C, C), tl.float32)
    for j in range(C):
        picked = (lane == j)[:, None]
        k_j = tl.sum(tl.where(picked, k, 0.0), axis=0)
        total_j = tl.sum(tl.where(picked, total, 0.0), axis=0)
        faded = k_j[None, :] * tl.exp(tl.minimum(total - total_j[None, :], 0.0))
        here = (lane == j)[None, :] & (lane >= j)[:, None]
        kk = tl.where(here, tl.sum(k * faded, axis=1)[:, None], kk)
        qk = tl.where(here, tl.sum(q * faded, axis=1)[:, None], qk)
    return kk, qk


@triton.jit
def _solve(lower, right, C: tl.constexpr):
    """``u`` of ``u + lower u = right`` with ``lower`` strictly lower triangular: row by row."""
    lane = tl.arange(0, C)
    u = right
    for i in range(1, C):
        line = tl.sum(tl.where((lane == i)[:, None], lower, 0.0), axis=0)
        u = tl.where((lane == i)[:, None], u - tl.sum(line[:, None] * u, axis=0)[None, :], u)
    return u


@triton.jit
def delta_chunk_kernel(
    q_ptr, k_ptr, v_ptr, decay_ptr, beta_ptr, state_ptr, out_ptr, marks_ptr,
    starts_ptr, slots_ptr, offsets_ptr, mark_starts_ptr, q_row, q_head, k_row, k_head, v_row, v_head,
    decay_row, decay_head, beta_row, heads, scale, BLOCK_TOKENS: tl.constexpr, GROUP: tl.constexpr,
    VECTOR: tl.constexpr, K_WIDTH: tl.constexpr, K_COLUMNS: tl.constexpr, V_WIDTH: tl.constexpr, V_TILE: tl.constexpr,
    C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """As the recurrent form, chunks ending at multiples of ``C`` from the request's first token on."""
    request, head = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(starts_ptr + request), tl.load(starts_ptr + request + 1)
    offset, mark = tl.load(offsets_ptr + request), tl.load(mark_starts_ptr + request)
    row_k, lane = tl.arange(0, K_COLUMNS), tl.arange(0, C)
    column_v = tl.program_id(2) * V_TILE + tl.arange(0, V_TILE)
    k_live, v_live = row_k < K_WIDTH, column_v < V_WIDTH
    cell = row_k[:, None] * V_WIDTH + column_v[None, :]
    inside = k_live[:, None] & v_live[None, :]
    state_at = (tl.load(slots_ptr + request).to(tl.int64) * heads + head) * (K_WIDTH * V_WIDTH)
    state = tl.load(state_ptr + state_at + cell, mask=inside, other=0.0)
    for chunk in range(offset // C, tl.cdiv(offset + end - begin, C)):
        index = chunk * C + lane - offset
        live = (index >= 0) & (index < end - begin)
        row = (begin + index).to(tl.int64)
        keys = live[:, None] & k_live[None, :]
        at = head // GROUP * q_head + row_k[None, :]
        q = tl.load(q_ptr + row[:, None] * q_row + at, mask=keys, other=0.0).to(tl.float32)
        at = head // GROUP * k_head + row_k[None, :]
        k = tl.load(k_ptr + row[:, None] * k_row + at, mask=keys, other=0.0).to(tl.float32)
        at = row[:, None] * v_row + head * v_head + column_v[None, :]
        v = tl.load(v_ptr + at, mask=live[:, None] & v_live[None, :], other=0.0).to(tl.float32)
        beta = tl.load(beta_ptr + row * beta_row + head, mask=live, other=0.0).to(tl.float32)
        decay_at = decay_ptr + row * decay_row + head * decay_head
        if VECTOR:
            decay = tl.load(decay_at[:, None] + row_k[None, :], mask=keys, other=0.0).to(tl.float32)
            total, last = tl.cumsum(decay, axis=0), tl.sum(decay, axis=0)
            kk, qk = _vector_pairs(q, k, total, C)
            into, out_of, kept = tl.exp(total), tl.exp(tl.minimum(last[None, :] - total, 0.0)), tl.exp(last)[:, None]
        else:
            decay = tl.load(decay_at, mask=live, other=0.0).to(tl.float32)
            total, last = tl.cumsum(decay, axis=0), tl.sum(decay, axis=0)
            kk, qk = _scalar_pairs(q, k, total, C, PRECISION)
            into, out_of, kept = tl.exp(total)[:, None], tl.exp(tl.minimum(last - total, 0.0))[:, None], tl.exp(last)
        lower = tl.where(lane[:, None] > lane[None, :], kk * beta[:, None], 0.0)
        update = _solve(lower, beta[:, None] * (v - tl.dot(k * into, state, input_precision=PRECISION)), C)
        o = tl.dot(q * into, state, input_precision=PRECISION)
        o = tl.dot(qk, update, o, input_precision=PRECISION) * scale
        at = (row[:, None] * heads + head) * V_WIDTH + column_v[None, :]
        tl.store(out_ptr + at, o.to(out_ptr.dtype.element_ty), mask=live[:, None] & v_live[None, :])
        state = tl.dot(tl.trans(k * out_of), update, state * kept, input_precision=PRECISION)
        if BLOCK_TOKENS > 0:
            done = (chunk + 1) * C
            if (done % BLOCK_TOKENS == 0) & (done <= offset + end - begin):
                at_mark = (mark + done // BLOCK_TOKENS - offset // BLOCK_TOKENS - 1).to(tl.int64) * heads + head
                tl.store(marks_ptr + at_mark * (K_WIDTH * V_WIDTH) + cell, state, mask=inside)
    tl.store(state_ptr + state_at + cell, state, mask=inside)


def chunk_gated_delta(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor, states: torch.Tensor,
    batch: Sequences, scale: float, *, arch: Arch | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Arguments and results as ``gated_delta.recurrent_gated_delta``; blocks must be a multiple of 16 tokens.

    Inputs in 16 bits are multiplied in TF32 where NVIDIA's matrix units have it: their own rounding is coarser.
    """
    arch = arch or arch_of(v.device)
    precision = "tf32" if arch.vendor == "nvidia" and v.element_size() == 2 else "ieee"
    # Compiled: 8 warps of 32 spill nothing on sm_90, where 4 spill 160 bytes for KDA; 8 warps of 64 on gfx942 leave
    # only 256 registers a thread and spill 71, 4 have 512.
    warps = 4 if arch.is_amd else 8
    inputs = (q, k, v, decay, beta)
    return launch_delta(
        delta_chunk_kernel, inputs, states, batch, scale, v_tile=32, chunk=CHUNK, warps=warps, precision=precision
    )
