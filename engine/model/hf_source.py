"""Weights out of a Hugging Face directory: safetensors files, memory-mapped, whole or sharded.

A file's header (its length, every tensor's type, shape and place) is checked by the ``safetensors`` library when it is
opened; a file that claims more than it holds never gets as far as a tensor.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from energyopt.core.errors import ModelFormatError, UnsupportedModelError

from ..files import inside, read_json
from .families import family_of, fp8_blocks, read_spec
from .family import Family
from .fp8 import SCALES, scales_shape, widen_fp8
from .hf_config import HfConfig
from .source import WHOLE, Part

_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_PACKED = {"U8": torch.uint8, "F8_E4M3": torch.float8_e4m3fn}


class HfSource:
    """Satisfies ``WeightSource`` for a directory with one ``model.safetensors`` or shards and their index.

    Each file is opened once, when its first tensor is wanted; pages of it reach memory when they are read.
    """

    def __init__(self, directory: Path) -> None:
        self._files = _locate(directory)
        self._directory = directory
        self._open: dict[Path, Any] = {}
        self._opening = threading.Lock()
        config = HfConfig(directory / "config.json")
        self.family: Family[Any] = family_of(config)
        self._blocks = fp8_blocks(config)
        self.spec = read_spec(config, self.family, "lm_head.weight" in self._files)

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def tensor(self, name: str, shape: tuple[int, ...], part: Part = WHOLE) -> torch.Tensor:
        scales = name + SCALES
        if scales not in self._files or len(shape) != len(self._blocks):
            return self._read(name, shape, part, _FLOATS, "floats of 2 or 4 bytes")
        values = self._read(name, shape, part, _PACKED, "U8 and F8_E4M3")
        found = self._read(scales, scales_shape(shape, self._blocks), WHOLE, _FLOATS, "floats of 2 or 4 bytes")
        return widen_fp8(values, found, self._blocks, shape, part)

    def packed(self, name: str, shape: tuple[int, ...], part: Part = WHOLE) -> torch.Tensor:
        return self._read(name, shape, part, _PACKED, "U8 and F8_E4M3").view(torch.uint8)

    def _read(
        self, name: str, shape: tuple[int, ...], part: Part, kinds: dict[str, torch.dtype], allowed: str
    ) -> torch.Tensor:
        path = self._files.get(name)
        if path is None:
            raise ModelFormatError(f"{self._directory} has no tensor {name!r}.")
        try:
            file = self._file(path)
            lazy = file.get_slice(name)
            if (found := tuple(lazy.get_shape())) != shape:
                raise ModelFormatError(f"{path}: tensor {name!r} has shape {found}, expected {shape}.")
            if (kind := lazy.get_dtype()) not in kinds:
                raise UnsupportedModelError(f"{path}: tensor {name!r} is {kind}; supported are {allowed}.")
            value: torch.Tensor = lazy[part] if part else file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ModelFormatError(f"{path}: tensor {name!r} cannot be read: {error}.") from error
        return value

    def _file(self, path: Path) -> Any:
        with self._opening:
            if path not in self._open:
                self._open[path] = safe_open(path, framework="pt")
            return self._open[path]


def _locate(directory: Path) -> dict[str, Path]:
    """Which file holds each tensor."""
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        weights = read_json(index).get("weight_map")
        if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights.values()):
            raise ModelFormatError(f"{index} has no weight_map from tensor names to file names.")
        return {tensor: inside(directory, name) for tensor, name in weights.items()}
    path = directory / "model.safetensors"
    if not path.is_file():
        raise ModelFormatError(f"{directory} has neither model.safetensors nor model.safetensors.index.json.")
    try:
        with safe_open(path, framework="pt") as file:
            return dict.fromkeys(file.keys(), path)
    except (OSError, SafetensorError) as error:
        raise ModelFormatError(f"{path} is truncated or not a safetensors file: {error}.") from error
