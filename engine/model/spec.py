"""What a model is: every number that shapes its tensors or enters its arithmetic.

Built from a GGUF header or from a Hugging Face ``config.json``; knows neither file, nor tensors, nor devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Protocol, runtime_checkable

import torch

from kernels.rope_scaling import Linear, Llama3, Plain, Scaling, Yarn

_SLOWEST = 1e-6
"""Turns within a context that YaRN's bounds must exceed; one over it, that they must not."""


MOST_LAYERS = 10_000
"""A list by layer is never longer than this; a false number of layers would make one."""
MOST_HEAD_DIM = 1 << 16
_MOST_SIZE = 1 << 24
_MOST: Mapping[str, int] = {
    "layers": MOST_LAYERS,
    "head_dim": MOST_HEAD_DIM,
    "rope.width": MOST_HEAD_DIM,
    "local_rope.width": MOST_HEAD_DIM,
    "context": (1 << 31) - 1,
}
"""Sizes that no model exceeds, where they are not those of any dimension: what they multiply to fits into 64 bits, and
what is made before a tensor's shape contradicts them stays small."""


@dataclass(frozen=True, slots=True)
class Factors:
    """Explicit divisors of rotary frequencies, one each, as GGUF files carry them."""

    divisors: tuple[float, ...]

    def apply(self, frequencies: torch.Tensor, base: float) -> tuple[torch.Tensor, float]:
        return frequencies / torch.tensor(self.divisors, dtype=frequencies.dtype), 1.0


@runtime_checkable
class HasProblems(Protocol):
    """A part of a model's numbers that can say what makes them impossible; sizes and signs are checked before."""

    def problems(self) -> str | None: ...


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
        """What makes these numbers impossible, or None: no size is below 1 or beyond any model's, no other number is
        below 0, and no part has a problem of its own."""
        if not self.eps > 0:
            return f"eps {self.eps} must be above 0"
        for name, value in _numbers(self, ""):
            if isinstance(value, float) and not (math.isfinite(value) and value >= 0):
                return f"{name} {value} must be a finite number of at least 0"
            if isinstance(value, int) and value < 1:
                return f"{name} {value} is below 1"
            if isinstance(value, int) and value > (most := _MOST.get(name, _MOST_SIZE)):
                return f"{name} {value} is above {most}, which no model needs"
        parts = (getattr(self, one.name) for one in fields(self))
        found = (part.problems() for part in parts if isinstance(part, HasProblems))
        return next(filter(None, found), None)


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
    scaling: Scaling | Factors = field(default_factory=Plain)

    def problems(self) -> str | None:
        """What makes these numbers impossible, or None."""
        if self.width % 2 or self.theta <= 0:
            return f"rope over {self.width} columns of base {self.theta} is not possible"
        match self.scaling:
            case Factors(divisors):
                if len(divisors) != self.width // 2:
                    return f"{len(divisors)} rope factors for {self.width // 2} frequencies"
                if not all(math.isfinite(one) and one > 0 for one in divisors):
                    return f"a rope factor, {min(divisors)}, must be a finite number above 0"
            case Linear(factor) | Llama3(factor) | Yarn(factor) if factor <= 0:
                return f"the rope factor {factor} must be above 0"
            case Llama3(_, low, high) if not 0 < low < high:
                return f"rope factors from {low} to {high} are not ascending"
            case Yarn(_, context, fast, slow) if not (_SLOWEST <= slow <= fast <= 1 / _SLOWEST and self.theta > 1):
                return f"YaRN over {context} positions of base {self.theta} from {fast} to {slow} is not possible"
        return None

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
class LlamaSpec(HeadsSpec):
    """Shape and constants of a Llama."""

    intermediate: int
    rope: RopeSpec
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
