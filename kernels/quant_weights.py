"""Weights in eight and four bits as the product's kernel reads them: codes, scales and lows, each on its own.

Rounding is done once, in ``kernels.cpu.blocks``, whose groups of 32 become these without a change of any number: byte
``j`` of a four-bit group holds code ``j`` in its low half and code ``j + 16`` in its high half, so a kernel gets two
runs of neighbouring weights from one run of bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from .cpu.blocks import BYTES, GROUP, Blocks, Kind


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """``W[o, i] = scales[o, i // 32] * code[o, i] + lows[o, i // 32]``, and no lows in eight bits.

    ``data`` (outputs, groups * 32) int8, or (outputs, groups * 16) uint8 where ``bits`` is 4; ``scales`` and ``lows``
    (outputs, groups) float16. Columns from ``inputs`` on fill up the last group and count for nothing.
    """

    data: torch.Tensor
    scales: torch.Tensor
    lows: torch.Tensor | None
    inputs: int

    @property
    def bits(self) -> int:
        return 8 if self.lows is None else 4

    @property
    def outputs(self) -> int:
        return self.data.shape[0]

    def to(self, device: torch.device) -> QuantizedWeight:
        lows = None if self.lows is None else self.lows.to(device)
        return QuantizedWeight(self.data.to(device), self.scales.to(device), lows, self.inputs)


def from_blocks(blocks: Blocks, inputs: int) -> QuantizedWeight:
    """The weights of ``blocks``, of whose columns ``inputs`` are real.

    Raises ValueError for a format other than Q8_0 and Q4_1, or for fewer columns than ``inputs``.
    """
    if blocks.kind not in (Kind.Q8_0, Kind.Q4_1) or not 0 < inputs <= blocks.width:
        raise ValueError(f"{blocks.kind.name} blocks of {blocks.width} columns cannot be taken as {inputs} inputs.")
    groups = blocks.data.reshape(blocks.rows, -1, BYTES[blocks.kind])
    header = 4 if blocks.kind is Kind.Q4_1 else 2
    halves = torch.from_numpy(np.ascontiguousarray(groups[..., :header]).view(np.float16))
    codes = torch.from_numpy(np.ascontiguousarray(groups[..., header:]).reshape(blocks.rows, -1))
    if blocks.kind is Kind.Q8_0:
        return QuantizedWeight(codes.view(torch.int8), halves[..., 0].contiguous(), None, inputs)
    return QuantizedWeight(codes, halves[..., 0].contiguous(), halves[..., 1].contiguous(), inputs)


def codes_of(weight: QuantizedWeight) -> torch.Tensor:
    """(outputs, groups, 32): signed in eight bits, from 0 to 15 in four."""
    if weight.bits == 8:
        return weight.data.view(weight.outputs, -1, GROUP)
    packed = weight.data.view(weight.outputs, -1, GROUP // 2)
    return torch.cat((packed & 15, packed >> 4), dim=-1)
