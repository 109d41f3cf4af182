"""Weights in eight and four bits: how they are rounded, and how two four-bit weights share a byte.

A weight matrix (outputs, inputs) is cut along the inputs into groups; each group of each output has one scale, and
``w`` is kept as ``q`` with ``w ~ (q - zero) * scale``. Byte ``j`` of a four-bit group holds weight ``j`` of it in its
low half and weight ``j + group / 2`` in its high half, so a kernel gets two runs of neighbouring weights from one run
of bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """``data`` (outputs, inputs) int8, or (outputs, inputs / 2) uint8 where ``bits`` is 4; ``scales`` (outputs,
    groups)."""

    data: torch.Tensor
    scales: torch.Tensor
    bits: int
    group: int

    @property
    def outputs(self) -> int:
        return self.data.shape[0]

    @property
    def inputs(self) -> int:
        return self.data.shape[1] * (2 if self.bits == 4 else 1)


def quantize(weight: torch.Tensor, bits: int, group: int) -> QuantizedWeight:
    """Round ``weight`` (outputs, inputs) to ``bits`` (8 or 4) per group, symmetrically: the largest of a group stays
    exact.

    Raises ValueError where the inputs are not whole groups, or a group is not a power of two of at least 32.
    """
    if bits not in (4, 8):
        raise ValueError(f"Weights can be kept in 4 or 8 bits, not {bits}.")
    outputs, inputs = weight.shape
    if group < 32 or group & (group - 1) or inputs % group:
        raise ValueError(f"A group must be a power of two, at least 32, that divides {inputs}; {group} is not.")
    grouped = weight.float().view(outputs, inputs // group, group)
    most = (1 << (bits - 1)) - 1
    scales = (grouped.abs().amax(-1) / most).clamp_min(1e-12)
    rounded = (grouped / scales[..., None]).round().clamp(-most, most).to(torch.int8)
    data = pack(rounded) if bits == 4 else rounded.view(outputs, inputs)
    return QuantizedWeight(data, scales, bits, group)


def pack(grouped: torch.Tensor) -> torch.Tensor:
    """Four-bit weights (outputs, groups, group) from -8 to 7 as (outputs, groups * group / 2) bytes, offset by 8."""
    low, high = (grouped.to(torch.int16) + 8).chunk(2, dim=-1)
    return (low | (high << 4)).to(torch.uint8).flatten(1)


def unpack(data: torch.Tensor, group: int) -> torch.Tensor:
    """The inverse of ``pack``: (outputs, groups, group) int8."""
    packed = data.view(data.shape[0], -1, group // 2)
    return torch.cat(((packed & 15).to(torch.int8) - 8, (packed >> 4).to(torch.int8) - 8), dim=-1)
