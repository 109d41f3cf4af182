"""Plain form of ``kernels.gated_delta`` and ``kernels.gated_delta_chunk``."""

from __future__ import annotations

import torch

from ..sequences import Sequences


def gated_delta(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor, states: torch.Tensor,
    batch: Sequences, scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    out, marks = torch.zeros_like(v), []
    share = v.shape[1] // k.shape[1]
    bounds = batch.starts.tolist()
    for request, slot in enumerate(batch.slots.tolist()):
        state = states[slot]
        done = int(batch.offsets[request])
        for row in range(bounds[request], bounds[request + 1]):
            key, query = (x[row].float().repeat_interleave(share, 0) for x in (k, q))
            fade = decay[row].float().exp()
            state *= fade[:, :, None] if decay.dim() == 3 else fade[:, None, None]
            update = beta[row].float()[:, None] * (v[row].float() - torch.einsum("hk,hkv->hv", key, state))
            state += key[:, :, None] * update[:, None, :]
            out[row] = (torch.einsum("hk,hkv->hv", query, state) * scale).to(v.dtype)
            done += 1
            if batch.block_tokens and done % batch.block_tokens == 0:
                marks.append(state.clone())
    return out, torch.stack(marks) if marks else states.new_zeros((0, *states.shape[1:]))
