"""The layer of most families: attention of some kind and feed-forward, each behind a norm and beside the residual."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from ..step import Kept, Slot, Step
from .loader import Loader


class Mixer(Protocol):
    """Attention, or a recurrence in its place."""

    @property
    def keeps(self) -> Kept: ...

    def __call__(self, x: torch.Tensor, step: Step, slot: Slot, /) -> torch.Tensor:
        """The share of the residual (rows, hidden) of normed ``x``."""
        ...


class PreNormLayer:
    """``h += mixer(norm(h))``, then ``h += mlp(norm(h))``. Satisfies ``Layer``.

    ``name`` is where the two norms lie; ``shift`` is added to their weights.
    """

    def __init__(
        self,
        load: Loader,
        name: str,
        mixer: Mixer,
        mlp: Callable[[torch.Tensor], torch.Tensor],
        *,
        hidden: int,
        eps: float,
        shift: float = 0.0,
    ) -> None:
        self._input_norm = load.norm(name + ".input_layernorm", hidden, shift)
        self._mlp_norm = load.norm(name + ".post_attention_layernorm", hidden, shift)
        self._mixer, self._mlp = mixer, mlp
        self._ops, self._eps = load.ops, eps

    @property
    def keeps(self) -> Kept:
        return self._mixer.keeps

    def __call__(self, hidden: torch.Tensor, step: Step, slot: Slot) -> torch.Tensor:
        ops, eps = self._ops, self._eps
        seen = self._mixer(ops.rms_norm(hidden, self._input_norm, eps), step, slot)
        normed, hidden = ops.add_rms_norm(seen, hidden, self._mlp_norm, eps)
        hidden += self._mlp(normed)
        return hidden
