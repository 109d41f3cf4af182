"""A mixture of experts out of plain products: each expert's rows together, for any device.

What ``moe`` does in three launches; here an expert that no row chose costs nothing, and weights take whatever form
``linear`` finds fastest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from . import linear
from .ops import ExpertWeights

_MakeLinear = Callable[[torch.Tensor, torch.Tensor | None, torch.dtype, torch.device], linear.Linear]


class LinearExperts:
    """Satisfies ``ops.Experts``. ``make`` brings each expert's two weights into their form; sums are in float32."""

    def __init__(self, weights: ExpertWeights, dtype: torch.dtype, device: torch.device, make: _MakeLinear) -> None:
        self._act = weights.act
        self._up = _each(weights.up, weights.up_bias, dtype, device, make)
        self._down = _each(weights.down, weights.down_bias, dtype, device, make)

    def __call__(self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x, dtype=torch.float32)
        for expert in sorted(set(ids.flatten().tolist())):
            row, choice = (ids == expert).nonzero(as_tuple=True)
            said = self._down[expert](self._act(self._up[expert](x[row])))
            out.index_add_(0, row, said.float() * weights[row, choice, None])
        return out.to(x.dtype)


def _each(
    weights: torch.Tensor, biases: torch.Tensor | None, dtype: torch.dtype, device: torch.device, make: _MakeLinear
) -> list[linear.Linear]:
    return [make(w, None if biases is None else biases[i], dtype, device) for i, w in enumerate(weights)]


make_experts = partial(LinearExperts, make=linear.make_linear)
make_plain_experts = partial(LinearExperts, make=linear.make_plain_linear)
