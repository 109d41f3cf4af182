"""A stack of layers between an embedding and an output projection: what all families are.

Tensors in, tensors out: requests and blocks are the runner's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from energyopt.core.errors import ConfigError
from kernels.ops import CopyBlocks, Draw

from .family import Blueprint
from .layers.embedding import load_ends
from .layers.loader import Loader
from .spec import DecoderSpec
from .step import Kept, Layer, Slot, Step


class Decoder:
    """A model, or one pipeline stage of it, on one rank. ``dtype`` is that of the weights and of the KV pool."""

    def __init__(self, spec: DecoderSpec, load: Loader, blueprint: Blueprint, threads: int) -> None:
        """Raises what ``WeightSource.tensor`` raises; ConfigError for a place that does not divide the model."""
        self.spec = spec
        self.dtype = load.dtype
        self.device = load.device
        self.activations = load.activations
        self.place = load.place
        self.layers = layers = stage_layers(spec.layers, load)
        self._rotaries = blueprint.rotaries
        self._scale = blueprint.embedding_scale
        self._ops = load.ops
        for index in layers:  # a false number of layers must end here, not after as many tasks
            load.norm(f"model.layers.{index}.input_layernorm", spec.hidden)
        with ThreadPoolExecutor(threads, thread_name_prefix="load-weights") as pool:
            ends = pool.submit(
                load_ends, load, spec.vocab, spec.hidden, first=self.is_first, last=self.is_last, tied=spec.tied
            )
            self._layers: list[Layer] = list(pool.map(blueprint.make_layer, layers))
            self._embedding, self._head = ends.result()
        self._norm = load.norm("model.norm", spec.hidden, blueprint.norm_shift) if self.is_last else None

    @property
    def is_first(self) -> bool:
        """Whether this stage embeds."""
        return self.layers.start == 0

    @property
    def is_last(self) -> bool:
        """Whether this stage makes logits."""
        return self.layers.stop == self.spec.layers

    @property
    def captures(self) -> bool:
        """Whether a decode step of the whole model, on this rank alone, can be captured as a graph."""
        alone = self.place.tensor.size == self.place.experts.size == self.place.context.size == 1
        return self._ops.captures and alone and self.is_first and self.is_last

    @property
    def draw(self) -> Draw | None:
        """The device's own sampling, where there is one."""
        return self._ops.draw

    @property
    def copy_blocks(self) -> CopyBlocks | None:
        """The device's own copy of blocks between pools, where there is one."""
        return self._ops.copy_blocks

    @property
    def keeps(self) -> tuple[Kept, ...]:
        """What each layer of this stage keeps of a sequence."""
        return tuple(layer.keeps for layer in self._layers)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Hidden states (rows, hidden) of ``tokens`` (rows,). Only the first stage can."""
        assert self._embedding is not None, "only the first stage embeds"
        hidden = self._embedding(tokens)
        return hidden if self._scale == 1.0 else hidden * self._scale

    def forward(self, hidden: torch.Tensor, positions: torch.Tensor, slots: Sequence[Slot]) -> torch.Tensor:
        """Hidden states (rows, hidden) behind this stage's layers; ``hidden`` may be overwritten.

        ``positions`` (rows,). What the layers keep of the rows is written to ``slots``, one a layer of this stage.
        """
        step = Step(tuple(rotary(positions) for rotary in self._rotaries))
        for layer, slot in zip(self._layers, slots, strict=True):
            hidden = layer(hidden, step, slot)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Next-token logits (rows, vocab), float32, of ``hidden`` (rows, hidden); there may be no row. Only the last
        stage can."""
        assert self._norm is not None, "only the last stage makes logits"
        assert self._head is not None
        if not len(hidden):
            return torch.empty((0, self.spec.vocab), device=self.device)
        return self._head(self._ops.rms_norm(hidden, self._norm, self.spec.eps))


def stage_layers(layers: int, load: Loader) -> range:
    """The layers of this rank's pipeline stage. Raises ConfigError for layers that the model lacks."""
    mine = range(layers) if load.place.layers is None else load.place.layers
    if not 0 <= mine.start < mine.stop <= layers or mine.step != 1:
        raise ConfigError(f"A pipeline stage of layers {mine.start} to {mine.stop} is not allowed: there are {layers}.")
    return mine
