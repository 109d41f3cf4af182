"""Weights rounded to eight or four bits: the numbers of ``--quantization``, as blocks for kernels that keep them packed
or widened again for those that do not. Widened they cost as much memory and time as the format they are widened to."""

from __future__ import annotations

import torch

from kernels.cpu.blocks import BYTES, GROUP, Blocks, dequantize, quantize

from .source import WHOLE, Part, WeightSource
from .spec import DecoderSpec

BITS = {"int8": 8, "int4": 4}
"""Of the configuration's names."""
_ROUNDED = ("_proj.weight", "embed_tokens.weight", "lm_head.weight")


class RoundedSource:
    """Satisfies ``WeightSource`` over another one. Projections and embeddings are rounded, norms and biases are not."""

    def __init__(self, source: WeightSource, bits: int) -> None:
        self._source = source
        self._bits = bits

    @property
    def spec(self) -> DecoderSpec:
        return self._source.spec

    def __contains__(self, name: object) -> bool:
        return name in self._source

    def packed(self, name: str, shape: tuple[int, ...], part: Part = WHOLE) -> torch.Tensor:
        return self._source.packed(name, shape, part)

    def tensor(self, name: str, shape: tuple[int, ...], part: Part = WHOLE) -> torch.Tensor:
        """Whole rows are rounded and columns cut from them, as groups of 32 count from a row's first column."""
        if len(shape) != 2 or not name.endswith(_ROUNDED):
            return self._source.tensor(name, shape, part)
        rounded = dequantize(self._rows(name, shape, part))[:, : shape[1]]
        return rounded[(slice(None), *part[1:])] if len(part) > 1 else rounded

    def blocks(self, name: str, shape: tuple[int, ...], part: Part = WHOLE) -> Blocks | None:
        """The same numbers packed; None for a tensor that is not rounded or columns that are not whole groups."""
        if len(shape) != 2 or not name.endswith(_ROUNDED):
            return None
        first, last, _ = part[1].indices(shape[1]) if len(part) > 1 else (0, shape[1], 1)
        if first % GROUP or (last % GROUP and last != shape[1]):
            return None
        rows = self._rows(name, shape, part)
        each = BYTES[rows.kind]
        return Blocks(rows.kind, rows.data[:, first // GROUP * each : -(-last // GROUP) * each])

    def _rows(self, name: str, shape: tuple[int, ...], part: Part) -> Blocks:
        return quantize(self._source.tensor(name, shape, part[:1]), self._bits)
