"""One decode step of a Llama-shaped model with random weights, out of this room's operators and torch's products.

It is what the benchmark times against the floor that memory bandwidth sets: every weight and every cached key and
value read once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .. import launch
from ..paged_decode import paged_decode
from ..rms_norm import add_rms_norm, rms_norm
from ..rope import rope_into_pages
from ..rope_scaling import rotary_tables
from ..sampling import Filters, sample
from ..swiglu import swiglu
from .work import Maker


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Llama-like model; the defaults are those of Llama-3.1-8B."""

    layers: int = 32
    width: int = 4096
    inner: int = 14336
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    vocabulary: int = 128_256
    block_tokens: int = 16


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights, each (outputs, inputs), and its pages (blocks, block_tokens, 2, kv_heads, head_dim)."""

    norm: torch.Tensor
    qkv: torch.Tensor
    out: torch.Tensor
    second_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    pages: torch.Tensor


class DecodeStep:
    """A batch of requests of equal context; ``run`` computes one token for each from ``tokens`` into ``tokens``.

    It never grows the context, so a captured run can be repeated for as long as a measurement needs.
    """

    def __init__(self, make: Maker, shape: Shape, batch: int, context: int) -> None:
        blocks = launch.ceil_div(context, shape.block_tokens)
        self.shape, self.arch = shape, make.arch
        self.tokens = make.whole(0, shape.vocabulary, batch, dtype=torch.int64)
        self.table = make.shuffled(batch * blocks).view(batch, blocks)
        self.lengths = make.full(context, batch)
        self.positions = make.full(context - 1, batch)
        last = self.table.gather(1, (self.positions[:, None] // shape.block_tokens).long())[:, 0]
        self.slots = last * shape.block_tokens + (context - 1) % shape.block_tokens
        cos, sin = rotary_tables(shape.head_dim, 500_000.0, context)
        self.cos, self.sin = cos.to(make.device), sin.to(make.device)
        self.embedding = _weight(make, shape.vocabulary, shape.width)
        self.head = _weight(make, shape.vocabulary, shape.width)
        self.norm = make.full(1.0, shape.width, dtype=make.dtype)
        self.layers = [_layer(make, shape, batch * blocks) for _ in range(shape.layers)]
        self.filters = Filters(
            make.full(1.0, batch, dtype=torch.float32), make.full(0, batch), make.full(1.0, batch, dtype=torch.float32),
            make.full(0.0, batch, dtype=torch.float32), make.full(7, batch, dtype=torch.int64), make.full(0, batch),
        )  # fmt: skip

    def run(self) -> torch.Tensor:
        """The next tokens, and the logits (batch, vocabulary) that they were drawn from as a return value."""
        hidden = self.embedding[self.tokens]
        residual = torch.zeros_like(hidden)
        for layer in self.layers:
            hidden, residual = add_rms_norm(hidden, residual, layer.norm, 1e-5, arch=self.arch)
            hidden = self._attend(hidden, layer)
            hidden, residual = add_rms_norm(hidden, residual, layer.second_norm, 1e-5, arch=self.arch)
            hidden = swiglu(hidden @ layer.gate_up.T, arch=self.arch) @ layer.down.T
        logits = rms_norm(hidden + residual, self.norm, 1e-5, arch=self.arch) @ self.head.T
        self.tokens.copy_(sample(logits, self.filters, arch=self.arch))
        return logits

    def _attend(self, hidden: torch.Tensor, layer: Layer) -> torch.Tensor:
        shape = self.shape
        heads = (hidden @ layer.qkv.T).view(len(hidden), -1, shape.head_dim)
        first, last = shape.heads, shape.heads + shape.kv_heads
        query, key, value = heads[:, :first], heads[:, first:last], heads[:, last:]
        keys, values = layer.pages[:, :, 0], layer.pages[:, :, 1]
        query = rope_into_pages(
            query, key, value, self.positions, self.cos, self.sin, keys, values, self.slots, arch=self.arch
        )
        scale = shape.head_dim**-0.5
        out, _ = paged_decode(query, keys, values, self.table, self.lengths, scale, arch=self.arch)
        return out.flatten(1) @ layer.out.T

    @property
    def least_bytes(self) -> int:
        """What a step must read: all weights but the embedding's other rows, and every cached key and value."""
        weights = [self.head, *(w for layer in self.layers for w in (layer.qkv, layer.out, layer.gate_up, layer.down))]
        per_token = 2 * self.shape.kv_heads * self.shape.head_dim * self.head.element_size() * self.shape.layers
        return sum(w.numel() * w.element_size() for w in weights) + per_token * int(self.lengths.sum())


def _weight(make: Maker, outputs: int, inputs: int) -> torch.Tensor:
    return make.normal(outputs, inputs).mul_(inputs**-0.5)


def _layer(make: Maker, shape: Shape, blocks: int) -> Layer:
    heads = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    return Layer(
        norm=make.full(1.0, shape.width, dtype=make.dtype),
        qkv=_weight(make, heads, shape.width),
        out=_weight(make, shape.width, shape.heads * shape.head_dim),
        second_norm=make.full(1.0, shape.width, dtype=make.dtype),
        gate_up=_weight(make, 2 * shape.inner, shape.width),
        down=_weight(make, shape.width, shape.inner),
        pages=make.normal(blocks, shape.block_tokens, 2, shape.kv_heads, shape.head_dim),
    )
