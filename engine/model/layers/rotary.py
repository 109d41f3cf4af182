"""Rotary positions (Su et al., 2021): the angles of one step, which all layers share."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..spec import RopeSpec
from .loader import Loader

Angles = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines (rows, 1, width) in the form that ``kernels.reference.rope`` takes."""


class Rotary:
    """Angles by position. ``frequencies`` are radians a token, by pair; ``stretch`` multiplies cosine and sine."""

    def __init__(
        self, frequencies: Sequence[float], device: torch.device, dtype: torch.dtype, stretch: float = 1.0
    ) -> None:
        self._frequencies = torch.tensor(frequencies, dtype=torch.float32, device=device)
        self._dtype = dtype
        self._stretch = stretch

    @classmethod
    def of(cls, rope: RopeSpec, load: Loader) -> Rotary:
        """The angles of ``rope`` where ``load`` brings weights."""
        frequencies, stretch = rope.angles()
        return cls(frequencies, load.device, load.activations, stretch)

    def __call__(self, positions: torch.Tensor) -> Angles:
        angles = torch.outer(positions.float(), self._frequencies).unsqueeze(1)
        cos, sin = angles.cos(), angles.sin()
        if self._stretch != 1.0:
            cos, sin = cos * self._stretch, sin * self._stretch
        return torch.cat((cos, cos), -1).to(self._dtype), torch.cat((-sin, sin), -1).to(self._dtype)
