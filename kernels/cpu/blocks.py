"""Weights in groups of 32 as GGUF keeps them, the form in which the native kernels take every weight.

A row is its groups one after the other; a group is a half-float scale, in Q4_1 a half-float low, and the codes: signed
bytes in Q8_0; in four bits 16 bytes of which byte ``i`` holds code ``i`` in its low half and code ``i + 16`` in its
high half. A weight is ``scale * code`` (Q8_0), ``scale * (code - 8)`` (Q4_0) or ``scale * code + low`` (Q4_1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from torch.nn import functional

GROUP = 32
Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
_SHRINKS = (1.0, 0.95, 0.9)
"""Shares of a group's range that four bits are spread over: what lies outside is clipped, what is inside is finer."""
_AT_ONCE = 1 << 22
"""Weights that are rounded at a time, so that the intermediate tensors stay small."""


class Kind(IntEnum):
    """A format; the numbers are those of formats.h."""

    Q4_1 = 0
    Q4_0 = 1
    Q8_0 = 2


BYTES = {Kind.Q4_1: 20, Kind.Q4_0: 18, Kind.Q8_0: 34}
"""Of one group of one row."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A weight matrix: ``data`` (rows, groups * BYTES[kind]), contiguous; ``width`` counts padding to whole groups."""

    kind: Kind
    data: Bytes

    @property
    def rows(self) -> int:
        return int(self.data.shape[0])

    @property
    def width(self) -> int:
        return int(self.data.shape[1]) // BYTES[self.kind] * GROUP


def joined(parts: Sequence[Blocks]) -> Blocks:
    """The rows of several matrices of one kind and width, one below the other. Raises ValueError otherwise."""
    if len({(part.kind, part.width) for part in parts}) != 1:
        raise ValueError("Matrices of different formats or widths cannot be joined.")
    return parts[0] if len(parts) == 1 else Blocks(parts[0].kind, np.concatenate([part.data for part in parts]))


def quantize(weight: torch.Tensor, bits: int) -> Blocks:
    """Round ``weight`` (rows, width) to eight bits (Q8_0) or four (Q4_1); rows are filled up with zeros.

    Raises ValueError for other numbers of bits.
    """
    if bits not in (4, 8):
        raise ValueError(f"Weights can be kept in 4 or 8 bits, not {bits}.")
    padded = functional.pad(weight, (0, -weight.shape[1] % GROUP)).contiguous()
    step = max(1, _AT_ONCE // padded.shape[1])
    pieces = [_eight(piece) if bits == 8 else _four(piece) for piece in torch.split(padded, step)]
    return Blocks(Kind.Q8_0 if bits == 8 else Kind.Q4_1, np.concatenate(pieces))


def dequantize(blocks: Blocks) -> torch.Tensor:
    """The weights (rows, width), float32."""
    codes, scales, lows = codes_of(blocks)
    return (codes * scales.unsqueeze(-1) + lows.unsqueeze(-1)).flatten(1)


def codes_of(blocks: Blocks) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes (rows, groups, 32) from 0 on, scales and lows (rows, groups), all float32: weight = code * scale + low."""
    groups = blocks.data.reshape(blocks.rows, -1, BYTES[blocks.kind])
    header = 4 if blocks.kind is Kind.Q4_1 else 2
    halves = torch.from_numpy(groups[..., :header].copy().view(np.float16).astype(np.float32))
    scales, body = halves[..., 0], groups[..., header:]
    if blocks.kind is Kind.Q8_0:
        return torch.from_numpy(body.view(np.int8).astype(np.float32)) + 128, scales, -128 * scales
    codes = torch.from_numpy(np.concatenate((body & 15, body >> 4), axis=-1).astype(np.float32))
    return codes, scales, halves[..., 1] if blocks.kind is Kind.Q4_1 else -8 * scales


def _eight(weight: torch.Tensor) -> Bytes:
    groups = weight.float().view(len(weight), -1, GROUP)
    scales = (groups.abs().amax(-1, keepdim=True) / 127).half()
    codes = (groups / _divisor(scales)).round().clamp(-127, 127).to(torch.int8)
    return _rows(scales.numpy().view(np.uint8), codes.numpy().view(np.uint8))


def _four(weight: torch.Tensor) -> Bytes:
    """For each group the clipping that leaves the least squared error, with scale and low fitted to the codes."""
    groups = weight.float().view(len(weight), -1, GROUP)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    best: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
    least = torch.full_like(low, torch.inf)
    for shrink in _SHRINKS:
        middle, half = (low + high) / 2, (high - low) / 2 * shrink
        found = _fit(groups, (2 * half / 15).half(), (middle - half).half())
        error = (found[0] * found[1].float() + found[2].float() - groups).square().sum(-1, keepdim=True)
        better = error < least
        least = torch.where(better, error, least)
        best = found if best is None else _choose(better, found, best)
    assert best is not None
    codes = best[0].to(torch.uint8)
    return _rows(
        torch.cat((best[1], best[2]), -1).numpy().view(np.uint8),
        (codes[..., : GROUP // 2] | codes[..., GROUP // 2 :] << 4).numpy(),
    )


Fit = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Codes (rows, groups, 32), scales and lows (rows, groups, 1), the last two as half floats."""


def _fit(groups: torch.Tensor, scales: torch.Tensor, lows: torch.Tensor) -> Fit:
    """Codes for a scale and a low, then the scale and low that fit those codes best (a line through them)."""
    codes = ((groups - lows.float()) / _divisor(scales)).round().clamp(0, 15)
    centred = codes - codes.mean(-1, keepdim=True)
    spread = centred.square().sum(-1, keepdim=True)
    slope = torch.where(spread > 0, (centred * groups).sum(-1, keepdim=True) / spread.clamp_min(1e-30), scales.float())
    fitted = slope.half()
    lows = (groups - codes * fitted.float()).mean(-1, keepdim=True).half()
    return ((groups - lows.float()) / _divisor(fitted)).round().clamp(0, 15), fitted, lows


def _choose(better: torch.Tensor, new: Fit, old: Fit) -> Fit:
    codes, scales, lows = (torch.where(better, one, other) for one, other in zip(new, old, strict=True))
    return codes, scales, lows


def _divisor(scales: torch.Tensor) -> torch.Tensor:
    """A scale of 0 belongs to a group of equals: every code is then 0."""
    wide = scales.float()
    return torch.where(wide == 0, torch.inf, wide)


def _rows(header: Bytes, codes: Bytes) -> Bytes:
    rows: Bytes = np.concatenate((header, codes), axis=-1)
    return np.ascontiguousarray(rows.reshape(len(rows), -1))
