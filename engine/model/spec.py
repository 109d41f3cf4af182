"""What a model is: every number that shapes its tensors or enters its arithmetic.

Built from a GGUF header or from a Hugging Face ``config.json``; knows neither file, nor tensors, nor devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass

import torch

from kernels.rope_scaling import Plain, Scaling


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched for long contexts.

    ``linear`` divides every frequency by ``factor``. ``llama3`` keeps high frequencies, divides low ones and blends
    between (Llama 3.1 model card and the transformers function of that name). ``factors`` are explicit divisors, one
    per frequency, as GGUF files carry them; they exclude the other two.
    """

    kind: str
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    factors: tuple[float, ...] = ()

    def apply(self, frequencies: list[float]) -> list[float]:
        """Scaled angular frequencies, radians per token."""
        if self.factors:
            return [frequency / factor for frequency, factor in zip(frequencies, self.factors, strict=True)]
        if self.kind == "linear":
            return [frequency / self.factor for frequency in frequencies]
        return [self._llama3(frequency) for frequency in frequencies]

    def _llama3(self, frequency: float) -> float:
        turns = self.original_context * frequency / (2 * math.pi)
        if turns < self.low_freq_factor:
            return frequency / self.factor
        if turns > self.high_freq_factor:
            return frequency
        blend = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return (1 - blend) * frequency / self.factor + blend * frequency


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """What every family has. ``tied``: the output projection is the embedding table."""

    name: str
    layers: int
    hidden: int
    vocab: int
    context: int
    eps: float
    tied: bool = False

    def problems(self) -> str | None:
        """What makes these numbers impossible, or None: no size is below 1, and no other number below 0."""
        for name, value in _numbers(self, ""):
            if isinstance(value, float) and not (math.isfinite(value) and value >= 0):
                return f"{name} {value} must be a finite number of at least 0"
            if isinstance(value, int) and value < 1:
                return f"{name} {value} is below 1"
        return None if self.eps > 0 else f"eps {self.eps} must be above 0"


def _numbers(spec: object, prefix: str) -> Iterator[tuple[str, object]]:
    for one in fields(spec) if is_dataclass(spec) and not isinstance(spec, type) else ():
        value = getattr(spec, one.name)
        if is_dataclass(value):
            yield from _numbers(value, f"{prefix}{one.name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield prefix + one.name, value


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary positions over ``width`` columns, angular frequencies ``theta^(-2i/width)`` before they are scaled."""

    width: int
    theta: float
    scaling: Scaling = field(default_factory=Plain)

    def angles(self) -> tuple[list[float], float]:
        """Scaled frequency of each rotated pair, radians a token, and what cosines and sines are multiplied by."""
        plain = self.theta ** (-torch.arange(0, self.width, 2, dtype=torch.float64) / self.width)
        scaled, stretch = self.scaling.apply(plain, self.theta)
        return scaled.tolist(), stretch


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsSpec(DecoderSpec):
    """A family with grouped-query attention."""

    heads: int
    kv_heads: int
    head_dim: int

    def problems(self) -> str | None:
        if problem := DecoderSpec.problems(self):
            return problem
        return head_problems(self.heads, self.kv_heads, self.head_dim)


def head_problems(heads: int, kv_heads: int, head_dim: int) -> str | None:
    """What makes these heads impossible, or None."""
    if heads % kv_heads:
        return f"{heads} heads are not a multiple of {kv_heads} key/value heads"
    return f"head_dim {head_dim} is odd" if head_dim % 2 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaSpec(DecoderSpec):
    """Shape and constants of a Llama."""

    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    attention_bias: bool = False
    mlp_bias: bool = False

    @property
    def query_rows(self) -> int:
        """Output rows of the query projection."""
        return self.heads * self.head_dim

    @property
    def kv_rows(self) -> int:
        """Output rows of the key projection, and of the value projection."""
        return self.kv_heads * self.head_dim

    def frequencies(self) -> list[float]:
        """Angular frequency of each rotated pair, ``theta^(-2i/head_dim)``, scaled."""
        pairs = self.head_dim // 2
        plain = [self.rope_theta ** (-2 * i / self.head_dim) for i in range(pairs)]
        return self.rope_scaling.apply(plain) if self.rope_scaling else plain

    def problems(self) -> str | None:
        """What makes these numbers impossible, or None."""
        numbers = (self.layers, self.hidden, self.intermediate, self.heads, self.kv_heads, self.head_dim, self.vocab)
        if min(*numbers, self.context) < 1:
            return "a size is below 1"
        if problem := head_problems(self.heads, self.kv_heads, self.head_dim):
            return problem
        if not (self.eps > 0 and self.rope_theta > 0):
            return f"eps {self.eps} and rope theta {self.rope_theta} must be above 0"
        if self.rope_scaling and self.rope_scaling.factors and len(self.rope_scaling.factors) != self.head_dim // 2:
            return f"{len(self.rope_scaling.factors)} rope factors for {self.head_dim // 2} frequencies"
        return None
