"""Where weights come from: one port, satisfied by ``GgufFile`` readers and Hugging Face directories.

Tensors are asked for by their Hugging Face names and arrive in that layout whatever the file's own.
"""

from __future__ import annotations

from typing import Protocol

import torch

from .spec import DecoderSpec, LlamaSpec

Part = tuple[slice, ...]
"""A piece of a tensor by dimension, steps of 1; dimensions that are not named are whole."""

WHOLE: Part = ()


class WeightSource(Protocol):
    """A model on disk. Thread-safe: several threads may load tensors at once."""

    @property
    def spec(self) -> DecoderSpec: ...

    def __contains__(self, name: object) -> bool:
        """Whether there is a tensor of this name."""
        ...

    def packed(self, name: str, shape: tuple[int, ...], part: Part = WHOLE) -> torch.Tensor:
        """As ``tensor``, for weights in a format of eight bits or less: bytes (uint8) as they are."""
        ...

    def tensor(self, name: str, shape: tuple[int, ...], part: Part = WHOLE) -> torch.Tensor:
        """The ``part`` of a tensor of ``shape``, on the CPU, float32, float16 or bfloat16; only that part is read
        where the file's format allows.

        Raises ModelFormatError naming file and tensor if it is missing, misshapen or unreadable.
        """
        ...


class LlamaSource(WeightSource, Protocol):
    """A model of the Llama family on disk."""

    @property
    def spec(self) -> LlamaSpec: ...
