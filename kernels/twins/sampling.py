"""Plain form of ``kernels.sampling``: a sort, running sums and the same Philox stream."""

from __future__ import annotations

import math

import torch

from ..sampling import Filters

_WORD = (1 << 32) - 1


def _high(a: int, b: torch.Tensor) -> torch.Tensor:
    """The upper 32 bits of a product of two 32-bit numbers, without a 64-bit overflow."""
    return (a * (b >> 16) + (a * (b & 0xFFFF) >> 16)) >> 16


def philox(seed: int, token: torch.Tensor, step: int) -> torch.Tensor:
    """The first word of Philox-4x32-10 (Salmon et al., 2011) keyed by ``seed`` at counter (token, step, 0, 0)."""
    c = [
        token.long(),
        torch.full_like(token, step).long(),
        torch.zeros_like(token).long(),
        torch.zeros_like(token).long(),
    ]
    low, high = seed & _WORD, (seed >> 32) & _WORD
    for _ in range(10):
        c = [
            _high(0xCD9E8D57, c[2]) ^ c[1] ^ low,
            0xCD9E8D57 * c[2] & _WORD,
            _high(0xD2511F53, c[0]) ^ c[3] ^ high,
            0xD2511F53 * c[0] & _WORD,
        ]
        low, high = (low + 0x9E3779B9) & _WORD, (high + 0xBB67AE85) & _WORD
    return c[0]


def kept(gap: torch.Tensor, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """Which tokens the filters leave, given every token's gap."""
    ordered = gap.sort().values
    mask = torch.isfinite(gap)
    if 0 < top_k < len(gap):
        mask &= gap <= ordered[top_k - 1]
    if top_p < 1:
        inside = gap[mask].sort().values
        mass = torch.exp(-inside.double()).cumsum(0)
        mask &= gap <= inside[int((mass < top_p * mass[-1]).sum())]
    if min_p > 0:
        mask &= gap <= -math.log(min_p)
    return mask


def sample(logits: torch.Tensor, filters: Filters) -> torch.Tensor:
    tokens = []
    for row, line in enumerate(logits.float()):
        temperature = float(filters.temperature[row])
        if temperature <= 0:
            tokens.append(int(line.argmax()))
            continue
        gap = (line.max() - line) / max(temperature, 1e-30)
        word = philox(int(filters.seed[row]), torch.arange(len(line)), int(filters.step[row]))
        noise = -torch.log(-torch.log(((word >> 9).float() + 0.5) * 2**-23))
        mask = kept(gap, int(filters.top_k[row]), float(filters.top_p[row]), float(filters.min_p[row]))
        tokens.append(int(torch.where(mask, noise - gap, -torch.inf).argmax()))
    return torch.tensor(tokens)
