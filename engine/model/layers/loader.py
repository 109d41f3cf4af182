"""Brings weights from a source to the device: the part of them that is this rank's, in the form that computes fastest.

A product's *outputs* are split over the tensor ranks by naming ranges of its rows; a product whose *inputs* are split
gives parts of a sum, which ``Place.tensor.all_reduce`` completes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from engine.parallel.context import split_context
from engine.parallel.ports import Place
from kernels.cpu.blocks import joined
from kernels.dispatch import Ops
from kernels.linear import Linear

from ..rounded import RoundedSource
from ..source import WHOLE, Part, WeightSource
from .split import span


class Loader:
    """Asks the source for each weight by name and shape; used by several threads at once.

    ``dtype`` is that of the weights and of the KV pool. Activations, and with them norms, are float32 on a CPU,
    whatever the weights are; on a GPU they have the weights' type. Weights that ``source`` rounds stay packed where the
    operators have products with such. Raises what ``WeightSource.tensor`` raises.
    """

    def __init__(
        self, source: WeightSource, ops: Ops, dtype: torch.dtype, device: torch.device, place: Place | None = None
    ) -> None:
        self.dtype = dtype
        self.device = device
        self.activations = torch.float32 if device.type == "cpu" else dtype
        self.place = place or Place()
        self.ops = split_context(ops, self.place.context, device)
        self._source = source

    def raw(self, name: str, shape: tuple[int, ...], part: Part = WHOLE) -> torch.Tensor:
        """The tensor as the source has it."""
        return self._source.tensor(name, shape, part)

    def table(self, name: str, shape: tuple[int, ...], part: Part = WHOLE) -> torch.Tensor:
        """A tensor in the weights' type."""
        return self.raw(name, shape, part).to(self.device, self.dtype)

    def vector(self, name: str, shape: tuple[int, ...], part: Part = WHOLE) -> torch.Tensor:
        """A small tensor in the activations' type."""
        return self.raw(name, shape, part).to(self.device, self.activations)

    def norm(self, name: str, width: int, shift: float = 0.0) -> torch.Tensor:
        """The weight of a norm over ``width`` columns; ``shift`` is added to what the source has."""
        weight = self.vector(name + ".weight", (width,))
        return weight + shift if shift else weight

    def has(self, name: str) -> bool:
        """Whether the source has a tensor of this name."""
        return name in self._source

    def packed(self, name: str, shape: tuple[int, ...], part: Part = WHOLE) -> torch.Tensor:
        """Bytes of a tensor in a packed format."""
        return self._source.packed(name, shape, part)

    def outputs(self, prefix: str, parts: Mapping[str, tuple[int, range]], width: int, *, bias: bool = False) -> Linear:
        """One product out of several that read the same ``width`` inputs.

        ``parts`` maps each one's name to all of its rows and to those that are wanted, in the order of the result.
        """
        pieces = [(f"{prefix}{name}.weight", (rows, width), (span(wanted),)) for name, (rows, wanted) in parts.items()]
        biases = [
            self.raw(f"{prefix}{name}.bias", (rows,), (span(wanted),)) for name, (rows, wanted) in parts.items() if bias
        ]
        return self._product(pieces, width, torch.cat(biases) if bias else None)

    def inputs(self, name: str, rows: int, width: int, wanted: range, *, bias: bool = False) -> Linear:
        """A product over the ``wanted`` ones of ``width`` inputs; the first tensor rank adds the bias."""
        first = self.place.tensor.rank == 0
        added = self.raw(name + ".bias", (rows,)) if bias and first else None
        return self._product([(name + ".weight", (rows, width), (slice(None), span(wanted)))], len(wanted), added)

    def rows(self, name: str, shape: tuple[int, int], part: Part, dense: torch.Tensor | None = None) -> Linear:
        """A product with some rows of a table; ``dense`` is these rows where they were read already."""
        return self._product([(name, shape, part)], shape[1], None, dense)

    def _product(
        self, pieces: Sequence[tuple[str, tuple[int, int], Part]], inputs: int, bias: torch.Tensor | None,
        dense: torch.Tensor | None = None,
    ) -> Linear:  # fmt: skip
        """The rows of several weights, one below the other: packed where they can be, else dense."""
        make = self.ops.make_quantized
        if make is not None and isinstance(self._source, RoundedSource):
            packed = [self._source.blocks(*piece) for piece in pieces]
            if all(one is not None for one in packed):
                return make(joined([one for one in packed if one]), inputs, bias, self.dtype, self.device)
        return self.make(torch.cat([self.raw(*piece) for piece in pieces]) if dense is None else dense, bias)

    def make(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """A product with ``weight`` (out, in)."""
        return self.ops.make_linear(weight, bias, self.dtype, self.device)
