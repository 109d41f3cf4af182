"""Rotary frequencies under each published scaling, as data for ``kernels.rope``.

A model turns pair ``i`` of a rotary part of ``width`` at position ``p`` by the angle ``p * f_i``, with
``f_i = base ** (-2 i / width)`` where nothing is scaled. The scalings change ``f``; YaRN also stretches the cosines and
sines by one factor. Partial rotation is a smaller ``width``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Plain:
    """Frequencies as they are."""

    def apply(self, frequencies: torch.Tensor, base: float) -> tuple[torch.Tensor, float]:
        return frequencies, 1.0


@dataclass(frozen=True, slots=True)
class Linear:
    """Positions squeezed by ``factor`` (Chen et al., 2023)."""

    factor: float

    def apply(self, frequencies: torch.Tensor, base: float) -> tuple[torch.Tensor, float]:
        return frequencies / self.factor, 1.0


@dataclass(frozen=True, slots=True)
class Llama3:
    """Llama 3.1: waves longer than ``context / low`` are slowed by ``factor``, shorter than ``context / high`` are
    kept, and those between are blended."""

    factor: float
    low: float
    high: float
    context: int

    def apply(self, frequencies: torch.Tensor, base: float) -> tuple[torch.Tensor, float]:
        turns = self.context * frequencies / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return frequencies * (kept + (1 - kept) / self.factor), 1.0


@dataclass(frozen=True, slots=True)
class Yarn:
    """YaRN (Peng et al., 2023): pairs that turn more than ``fast`` times within ``context`` keep their frequency,
    those that turn less than ``slow`` times are slowed by ``factor``, a ramp over the pair's index lies between.

    ``stretch`` multiplies cosines and sines; None means ``0.1 ln(factor) + 1``. ``rounded`` says whether the ramp's
    ends are rounded to whole pairs, as in the paper's code.
    """

    factor: float
    context: int
    fast: float = 32.0
    slow: float = 1.0
    stretch: float | None = None
    rounded: bool = True

    def apply(self, frequencies: torch.Tensor, base: float) -> tuple[torch.Tensor, float]:
        pairs = len(frequencies)
        low, high = self._pair_turning(self.fast, pairs, base), self._pair_turning(self.slow, pairs, base)
        if self.rounded:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * pairs - 1)
        ramp = ((torch.arange(pairs) - low) / max(high - low, 1e-3)).clamp(0, 1)
        slowed = frequencies * (1 - ramp) + frequencies / self.factor * ramp
        default = 0.1 * math.log(self.factor) + 1 if self.factor > 1 else 1.0
        return slowed, default if self.stretch is None else self.stretch

    def _pair_turning(self, turns: float, pairs: int, base: float) -> float:
        return pairs * math.log(self.context / (turns * 2 * math.pi)) / math.log(base)


Scaling = Plain | Linear | Llama3 | Yarn


def rotary_tables(
    width: int, base: float, positions: int, scaling: Scaling | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, each (positions, width / 2) in float32, for a rotary part of ``width`` (even).

    Angles are formed in float64: at a million tokens a float32 product is off by tenths of a radian.
    """
    if width % 2 or width <= 0:
        raise ValueError(f"A rotary part must be even and positive, not {width}.")
    frequencies = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    scaled, stretch = (scaling or Plain()).apply(frequencies, base)
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * scaled[None, :].double()
    return (angles.cos() * stretch).float(), (angles.sin() * stretch).float()
