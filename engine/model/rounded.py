"""Weights rounded to eight or four bits and widened again: the numbers of ``--quantization`` where no kernel keeps them
packed. It costs as much memory and time as the format it is widened to."""

from __future__ import annotations

import torch

from kernels.cpu.blocks import dequantize, quantize

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
        rows = self._source.tensor(name, shape, part[:1])
        rounded = dequantize(quantize(rows, self._bits))[:, : shape[1]]
        return rounded[(slice(None), *part[1:])] if len(part) > 1 else rounded
