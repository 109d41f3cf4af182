"""The gated feed-forward half of a layer."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .loader import Loader
from .split import share


class GatedMlp:
    """``down(act(gate(x)) * up(x))``; each tensor rank has a share of the inner columns.

    ``act`` takes gate and up side by side, (rows, 2 * width); SwiGLU if none is given.
    """

    def __init__(
        self,
        load: Loader,
        name: str,
        hidden: int,
        intermediate: int,
        *,
        bias: bool = False,
        act: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        mine = share(intermediate, load.place.tensor)
        parts = {"gate_proj": (intermediate, mine), "up_proj": (intermediate, mine)}
        self._gate_up = load.outputs(name + ".", parts, hidden, bias=bias)
        self._down = load.inputs(name + ".down_proj", hidden, intermediate, mine, bias=bias)
        self._act = act or load.ops.swiglu
        self._ranks = load.place.tensor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._ranks.all_reduce(self._down(self._act(self._gate_up(x))))
