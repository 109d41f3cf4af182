"""Where packed weights come from: groups of a GGUF file as they are; ``RoundedSource`` rounds floats of any source."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from gguf import GGMLQuantizationType as GgufType

from energyopt.core.errors import ModelFormatError
from kernels.cpu.blocks import Blocks, Kind, dequantize, joined, quantize

from ..model.gguf_file import GgufFile
from ..model.gguf_source import GgufSource, gguf_name
from ..model.source import WeightSource

KINDS = {GgufType.Q4_1: Kind.Q4_1, GgufType.Q4_0: Kind.Q4_0, GgufType.Q8_0: Kind.Q8_0}
"""GGUF's formats that stay as they are."""


class BlockSource(Protocol):
    """Matrices by their Hugging Face names, in groups of 32. ``RoundedSource`` is one too."""

    def matrix(self, name: str, shape: tuple[int, int]) -> Blocks:
        """Raises what ``WeightSource.tensor`` raises."""
        ...


class PackedSource:
    """Keeps a GGUF file's Q4_0, Q4_1 and Q8_0 groups; a tensor of another format is rounded to eight bits."""

    def __init__(self, source: GgufSource, file: GgufFile) -> None:
        self._source = source
        self._file = file

    def matrix(self, name: str, shape: tuple[int, int]) -> Blocks:
        own = gguf_name(name)
        info = self._file.tensors.get(own)
        kind = None if info is None else KINDS.get(info.kind)
        if info is None or kind is None:
            return quantize(self._source.tensor(name, shape), 8)
        if info.shape != shape:
            raise ModelFormatError(f"{self._file.path}: tensor {own!r} has shape {info.shape}, expected {shape}.")
        rows = np.memmap(self._file.path, np.uint8, "r", info.offset, (shape[0], info.size // shape[0]))
        return Blocks(kind, self._in_order(own, rows))

    def _in_order(
        self, own: str, rows: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        """GGUF permutes rows of the query and key projections, where neighbours are rotated together."""
        if ".attn_q." not in own and ".attn_k." not in own:
            return rows
        half = self._source.spec.head_dim // 2
        return np.ascontiguousarray(rows.reshape(-1, half, 2, rows.shape[1]).swapaxes(1, 2)).reshape(rows.shape)


def packed_share(file: GgufFile) -> float:
    """The share of a file's matrices, by weights, that are in a format which stays as it is."""
    sizes = [(int(np.prod(info.shape)), info.kind in KINDS) for info in file.tensors.values() if len(info.shape) == 2]
    total = sum(size for size, _ in sizes)
    return sum(size for size, kept in sizes if kept) / total if total else 0.0


def stacked(parts: list[Blocks]) -> Blocks:
    """Matrices that read the same input as one. Where formats differ, all are rounded to eight bits."""
    if len({part.kind for part in parts}) == 1:
        return joined(parts)
    return joined([part if part.kind is Kind.Q8_0 else quantize(dequantize(part), 8) for part in parts])


def biases(source: WeightSource, names: dict[str, int]) -> torch.Tensor:
    """The bias vectors of several projections, one behind the other, float32."""
    return torch.cat([source.tensor(name + ".bias", (rows,)).float() for name, rows in names.items()])
