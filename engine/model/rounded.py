"""Weights rounded to eight or four bits: the numbers of ``--quantization``, as blocks for kernels that keep them packed
or widened again for those that do not. Widened they cost as much memory and time as the format they are widened to."""

from __future__ import annotations

from threading import Lock

import torch

from kernels.cpu.blocks import BYTES, GROUP, Blocks, dequantize, quantize

from .source import WHOLE, Part, WeightSource
from .spec import DecoderSpec

BITS = {"int8": 8, "int4": 4}
"""Of the configuration's names."""
_EXACT = (".gate.weight", "_gate.weight", "router.weight", "conv1d.weight", "bias", "A_log")
"""Ends of the names of tensors of several dimensions that are few and decide much: routers, gates, convolutions."""


class RoundedSource:
    """Satisfies ``WeightSource`` over another one. What vectors are multiplied by is rounded: projections, experts and
    embeddings; norms, biases and the tensors of ``_EXACT`` are not. Weights that are packed already stay as they are.
    """

    def __init__(self, source: WeightSource, bits: int) -> None:
        self._source = source
        self._bits = bits
        self._counting = Lock()
        self._seen: dict[tuple[str, str], tuple[int, bool]] = {}

    @property
    def spec(self) -> DecoderSpec:
        return self._source.spec

    @property
    def share(self) -> float:
        """How many of the weights that were asked for, and not packed before, were rounded: 0 to 1."""
        rounded = sum(weights for weights, rounds in self._seen.values() if rounds)
        return rounded / max(1, sum(weights for weights, _ in self._seen.values()))

    def __contains__(self, name: object) -> bool:
        return name in self._source

    def packed(self, name: str, shape: tuple[int, ...], part: Part = WHOLE) -> torch.Tensor:
        return self._source.packed(name, shape, part)

    def tensor(self, name: str, shape: tuple[int, ...], part: Part = WHOLE) -> torch.Tensor:
        rounds = _rounds(name, shape)
        value = self._widened(name, shape, part) if rounds else self._source.tensor(name, shape, part)
        self._count(name, part, value.numel(), rounds)
        return value

    def blocks(self, name: str, shape: tuple[int, ...], part: Part = WHOLE) -> Blocks | None:
        """The same numbers packed; None for a tensor that is not rounded or columns that are not whole groups."""
        if len(shape) != 2 or not _rounds(name, shape):
            return None
        first, last, _ = part[1].indices(shape[1]) if len(part) > 1 else (0, shape[1], 1)
        if first % GROUP or (last % GROUP and last != shape[1]):
            return None
        return self.matrix(name, (shape[0], shape[1]), part)

    def matrix(self, name: str, shape: tuple[int, int], part: Part = WHOLE) -> Blocks:
        """A matrix packed, whatever its name; the columns of a part are whole groups."""
        first, last, _ = part[1].indices(shape[1]) if len(part) > 1 else (0, shape[1], 1)
        rows = quantize(self._source.tensor(name, shape, part[:1]), self._bits)
        each = BYTES[rows.kind]
        self._count(name, part, rows.rows * (last - first), True)
        return Blocks(rows.kind, rows.data[:, first // GROUP * each : -(-last // GROUP) * each])

    def _widened(self, name: str, shape: tuple[int, ...], part: Part) -> torch.Tensor:
        """Groups of 32 count along the inputs, from the first: a matrix (outputs, inputs) is read in whole rows, and
        experts (experts, inputs, outputs) whole; the part is cut from what was rounded."""
        value = self._source.tensor(name, shape, part[:1])
        if len(shape) == 2:
            rounded = self._through(value)
        else:
            rounded = self._through(value.transpose(1, 2).flatten(0, 1)).view(len(value), shape[2], shape[1])
            rounded = rounded.transpose(1, 2)
        return rounded[(slice(None), *part[1:])] if len(part) > 1 else rounded

    def _through(self, rows: torch.Tensor) -> torch.Tensor:
        return dequantize(quantize(rows, self._bits))[:, : rows.shape[1]]

    def _count(self, name: str, part: Part, weights: int, rounded: bool) -> None:
        """Once for each part of a tensor: a tied table is read as the embedding and as the head."""
        with self._counting:
            self._seen[name, repr(part)] = (weights, rounded)


def _rounds(name: str, shape: tuple[int, ...]) -> bool:
    return len(shape) in (2, 3) and not name.endswith(_EXACT)
