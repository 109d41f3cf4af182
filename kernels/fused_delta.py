"""The gated delta rule of ``kernels.gated_delta`` in torch, many tokens at a time: what the CPU computes.

Within a chunk let ``G_t`` be the sum of log decays up to token ``t``, and ``S`` the state before it. Then the rule says

    u_t = b_t (v_t - (k_t e^G_t)^T S - sum over s < t of w(k_t, s) u_s)        w(x, s) = x^T e^(G_t - G_s) k_s
    o_t = scale ((q_t e^G_t)^T S + sum over s <= t of w(q_t, s) u_s)
    S'  = e^G_C S + sum over s of e^(G_C - G_s) k_s u_s^T

so the updates ``u`` are the solution of one triangular system (Yang et al., 2024). No exponent is above 0; the sums
are kept in float64, since their differences count.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch

from .sequences import Sequences

CHUNK = 32
_SPREAD = 120.0
"""Of the sums of one key column's decays in a chunk: up to here ``e^(G_t - G_s)`` is a product of two floats."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Some tokens, float32: ``q`` and ``k`` (tokens, heads, key), ``v`` (tokens, heads, value), ``decay`` (tokens,
    heads, key or 1), ``beta`` (tokens, heads)."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    decay: torch.Tensor
    beta: torch.Tensor

    def __getitem__(self, rows: slice | int) -> _Rows:
        return _Rows(self.q[rows], self.k[rows], self.v[rows], self.decay[rows], self.beta[rows])


def gated_delta(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor, states: torch.Tensor,
    batch: Sequences, scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """As ``kernels.gated_delta.recurrent_gated_delta``, chunk by chunk."""
    out = torch.empty_like(v)
    marks = states.new_empty((batch.boundaries, *states.shape[1:]))
    share = v.shape[1] // k.shape[1]
    query, key = (x.float().repeat_interleave(share, 1) for x in (q, k))
    rows = _Rows(query, key, v.float(), _by_column(decay.float()), beta.float())
    places = zip(pairwise(batch.starts.tolist()), batch.slots.tolist(), batch.offsets.tolist(), strict=True)
    mark = 0
    for (begin, stop), slot, done in places:
        state, offset = states[slot], done - begin
        while begin < stop:
            count = min(CHUNK, stop - begin)
            if batch.block_tokens:
                count = min(count, batch.block_tokens - (begin + offset) % batch.block_tokens)
            out[begin : begin + count] = _advance(rows[begin : begin + count], state, scale)
            begin += count
            if batch.block_tokens and (begin + offset) % batch.block_tokens == 0:
                marks[mark] = state
                mark += 1
    return out, marks


def _by_column(decay: torch.Tensor) -> torch.Tensor:
    return decay if decay.dim() == 3 else decay.unsqueeze(-1)


def _advance(rows: _Rows, state: torch.Tensor, scale: float) -> torch.Tensor:
    """Outputs (tokens, heads, value) of one sequence's next tokens; ``state`` (heads, key, value) is moved on."""
    count = len(rows.q)
    if count > 1 and (rows.decay.shape[-1] == 1 or float(rows.decay[1:].sum(0).min()) > -_SPREAD):
        return _chunk(rows, state, scale)
    return torch.stack([_token(rows[at], state, scale) for at in range(count)])


def _token(rows: _Rows, state: torch.Tensor, scale: float) -> torch.Tensor:
    """One token by the rule itself: there is nothing to share, and decays of any strength are exact."""
    state.mul_(rows.decay.exp().unsqueeze(-1))
    seen = (rows.k.unsqueeze(1) @ state).squeeze(1)
    update = rows.beta.unsqueeze(-1) * (rows.v - seen)
    state.baddbmm_(rows.k.unsqueeze(2), update.unsqueeze(1))
    seen = (rows.q.unsqueeze(1) @ state).squeeze(1)
    return seen.mul_(scale)


def _chunk(rows: _Rows, state: torch.Tensor, scale: float) -> torch.Tensor:
    """As ``_advance``, by one triangular system."""
    query, key, value = (x.transpose(0, 1) for x in (rows.q, rows.k, rows.v))
    total, beta = rows.decay.double().cumsum(0).transpose(0, 1), rows.beta.T.unsqueeze(-1)
    faded = total.float().exp()
    of_keys, of_queries = _between(key, key, total), _between(query, key, total)
    system = beta * of_keys.tril(-1)
    wanted = beta * (value - (key * faded) @ state)
    update: torch.Tensor = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    out: torch.Tensor = ((query * faded) @ state + of_queries @ update) * scale
    last = total[:, -1:]
    state.mul_(last.float().exp().transpose(1, 2)).add_((key * (last - total).float().exp()).transpose(1, 2) @ update)
    return out.transpose(0, 1)


def _between(x: torch.Tensor, key: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """``w(x_t, s)`` for ``s <= t``, else 0: (heads, tokens, tokens) of ``x`` and ``key`` (heads, tokens, key)."""
    if total.shape[-1] == 1:
        gap = (total - total.transpose(1, 2)).float().tril()
        return (x @ key.transpose(1, 2)).mul_(gap.exp_()).tril_()
    middle = (total[:, :1] + total[:, -1:]) / 2
    early, late = (total - middle).float().exp(), (middle - total).float().exp()
    return ((x * early) @ (key * late).transpose(1, 2)).tril_()
