"""The gated delta rule, token by token: Gated DeltaNet (Yang et al., 2024) and Kimi Delta Attention (2025).

Each head keeps a state ``S`` (key width x value width, float32). A token with key ``k``, value ``v``, query ``q``,
log decay ``g <= 0`` and write strength ``b`` does::

    S <- exp(g) S         u = b (v - k^T S)         S <- S + k u^T         o = scale q^T S

``g`` is one number per head (Gated DeltaNet) or one per key column (KDA: ``exp(g)`` scales the rows of ``S``). Keys
are used as given; models normalise them first. Key heads may be shared by several value heads. The form here suits
decode; ``gated_delta_chunk`` gives the same for prompts. Both can write the state as it is at block boundaries, which
is what a prefix cache keeps.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import launch
from .sequences import Sequences


@triton.jit
def delta_recurrent_kernel(
    q_ptr, k_ptr, v_ptr, decay_ptr, beta_ptr, state_ptr, out_ptr, marks_ptr,
    starts_ptr, slots_ptr, offsets_ptr, mark_starts_ptr, q_row, q_head, k_row, k_head, v_row, v_head,
    decay_row, decay_head, beta_row, heads, scale, BLOCK_TOKENS: tl.constexpr, GROUP: tl.constexpr,
    VECTOR: tl.constexpr, K_WIDTH: tl.constexpr, K_COLUMNS: tl.constexpr, V_WIDTH: tl.constexpr, V_TILE: tl.constexpr,
    C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program a request, a value head and ``V_TILE`` of its columns, which never meet each other."""
    request, head = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(starts_ptr + request), tl.load(starts_ptr + request + 1)
    offset, mark = tl.load(offsets_ptr + request), tl.load(mark_starts_ptr + request)
    row_k = tl.arange(0, K_COLUMNS)
    column_v = tl.program_id(2) * V_TILE + tl.arange(0, V_TILE)
    k_live, v_live = row_k < K_WIDTH, column_v < V_WIDTH
    cell = row_k[:, None] * V_WIDTH + column_v[None, :]
    inside = k_live[:, None] & v_live[None, :]
    state_at = (tl.load(slots_ptr + request).to(tl.int64) * heads + head) * (K_WIDTH * V_WIDTH)
    state = tl.load(state_ptr + state_at + cell, mask=inside, other=0.0)
    for index in range(end - begin):
        row = (begin + index).to(tl.int64)
        q = tl.load(q_ptr + row * q_row + head // GROUP * q_head + row_k, mask=k_live, other=0.0).to(tl.float32)
        k = tl.load(k_ptr + row * k_row + head // GROUP * k_head + row_k, mask=k_live, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + row * v_row + head * v_head + column_v, mask=v_live, other=0.0).to(tl.float32)
        beta = tl.load(beta_ptr + row * beta_row + head).to(tl.float32)
        decay_at = decay_ptr + row * decay_row + head * decay_head
        if VECTOR:
            state *= tl.exp(tl.load(decay_at + row_k, mask=k_live, other=0.0).to(tl.float32))[:, None]
        else:
            state *= tl.exp(tl.load(decay_at).to(tl.float32))
        update = beta * (v - tl.sum(k[:, None] * state, axis=0))
        state += k[:, None] * update[None, :]
        o = tl.sum(q[:, None] * state, axis=0) * scale
        tl.store(out_ptr + (row * heads + head) * V_WIDTH + column_v, o.to(out_ptr.dtype.element_ty), mask=v_live)
        if BLOCK_TOKENS > 0:
            done = offset + index + 1
            if done % BLOCK_TOKENS == 0:
                at = (mark + done // BLOCK_TOKENS - offset // BLOCK_TOKENS - 1).to(tl.int64) * heads + head
                tl.store(marks_ptr + at * (K_WIDTH * V_WIDTH) + cell, state, mask=inside)
    tl.store(state_ptr + state_at + cell, state, mask=inside)


def recurrent_gated_delta(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor, states: torch.Tensor,
    batch: Sequences, scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Run the rule over ``q`` and ``k`` (rows, key heads, key width) and ``v`` (rows, heads, value width).

    ``decay`` (rows, heads) or, for KDA, (rows, heads, key width) holds logarithms; ``beta`` (rows, heads). ``states``
    (slots, heads, key width, value width) float32 are read and updated in place. Gives the output (rows, heads, value
    width) and the states at block boundaries (boundaries, heads, key width, value width).
    """
    return launch_delta(delta_recurrent_kernel, (q, k, v, decay, beta), states, batch, scale, v_tile=16, chunk=1)


def launch_delta(
    kernel: object, inputs: tuple[torch.Tensor, ...], states: torch.Tensor, batch: Sequences, scale: float,
    *, v_tile: int, chunk: int, warps: int = 4, precision: str = "ieee",
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Launch ``kernel``, which is one of the two forms, over ``inputs`` (q, k, v, decay, beta)."""
    q, k, v, decay, beta = inputs
    rows, heads, v_width = v.shape
    k_width = k.shape[2]
    if heads % k.shape[1] or states.shape[1:] != (heads, k_width, v_width) or q.shape != k.shape:
        raise ValueError(f"States {tuple(states.shape)} do not fit keys {tuple(k.shape)} and values {tuple(v.shape)}.")
    if any(tensor.stride(-1) != 1 for tensor in inputs) or not states.is_contiguous():
        raise ValueError("Columns of the inputs must be neighbours in memory, and the states contiguous.")
    if batch.block_tokens % chunk:
        raise ValueError(f"Blocks of {batch.block_tokens} tokens do not end where chunks of {chunk} do.")
    out = torch.empty((rows, heads, v_width), dtype=v.dtype, device=v.device)
    marks = torch.empty((batch.boundaries, heads, k_width, v_width), dtype=torch.float32, device=v.device)
    tile = min(v_tile, max(16, launch.power_of_two(v_width)))
    requests = batch.slots.shape[0]
    if requests and rows:
        kernel[(requests, heads, triton.cdiv(v_width, tile))](  # type: ignore[index]
            q, k, v, decay, beta, states, out, marks,
            batch.starts, batch.slots, batch.offsets, batch.boundary_starts,
            *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *decay.stride()[:2], beta.stride(0), heads, scale,
            BLOCK_TOKENS=batch.block_tokens, GROUP=heads // k.shape[1], VECTOR=decay.dim() == 3, K_WIDTH=k_width,
            K_COLUMNS=max(16, launch.power_of_two(k_width)), V_WIDTH=v_width, V_TILE=tile,
            C=chunk, PRECISION=precision, num_warps=warps,
        )  # fmt: skip
    return out, marks
