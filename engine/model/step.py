"""What a layer is to a model: what all layers of one step share, and what each keeps of every token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from kernels.pages import Pages

from .layers.rotary import Angles


@dataclass(frozen=True, slots=True)
class Keeps:
    """What a layer keeps for each token: ``token`` is its shape, (2, kv_heads, head_dim) for keys and values.

    It is read for the last ``window`` positions only (0: for all).
    """

    token: tuple[int, ...]
    window: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """Of one batch: rotary angles of its rows, of each kind that the model has, and where they lie in the pool."""

    angles: tuple[Angles, ...]
    pages: Pages


class Layer(Protocol):
    """One layer of a model on one rank."""

    @property
    def keeps(self) -> Keeps: ...

    def __call__(self, hidden: torch.Tensor, step: Step, pool: torch.Tensor) -> torch.Tensor:
        """The hidden states (rows, hidden) behind the layer; ``hidden`` may be overwritten. ``pool`` is this layer's
        part, (blocks, block_tokens, *keeps.token)."""
        ...
