"""One use of an operator: its arguments, its plain twin and what the hardware must at least move and multiply."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..platform import Arch


@dataclass(frozen=True, slots=True)
class Work:
    """``op(*arguments, arch=arch)`` and ``twin(*arguments)`` give the same tuple of tensors, those written in place
    included.

    ``bytes`` is the least the operator reads and writes, ``flops`` what it multiplies and adds on the matrix units.
    """

    op: Callable[..., tuple[torch.Tensor, ...]]
    twin: Callable[..., tuple[torch.Tensor, ...]]
    arguments: tuple[Any, ...]
    bytes: int
    flops: int = 0


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes arguments on one device: random where there is memory, mere shapes on the ``meta`` device."""

    device: torch.device
    dtype: torch.dtype
    arch: Arch
    generator: torch.Generator | None = None

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Normal numbers in ``dtype`` (by default the maker's); eight-bit types get them rounded."""
        kind = dtype or self.dtype
        if self.device.type == "meta":
            return torch.empty(shape, dtype=kind, device=self.device)
        wide = torch.float32 if kind.itemsize == 1 else kind
        return torch.randn(shape, generator=self.generator, device=self.device, dtype=wide).to(kind)

    def uniform(self, *shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=self.generator, device=self.device, dtype=torch.float32)

    def whole(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """Integers from ``low`` to ``high`` - 1."""
        return torch.randint(low, high, shape, generator=self.generator, device=self.device, dtype=dtype)

    def shuffled(self, count: int) -> torch.Tensor:
        if self.device.type == "meta":
            return torch.empty(count, dtype=torch.int32, device=self.device)
        return torch.randperm(count, generator=self.generator, device=self.device).int()

    def full(self, value: float, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.full(shape, value, dtype=dtype, device=self.device)


@dataclass(frozen=True, slots=True)
class Case:
    """A named use. ``build(maker, small)`` makes it at a size for checking (``small``) or for timing; ``dtypes`` are
    those that it makes sense in; ``needs_fp8`` leaves it out where the architecture has no eight-bit floats."""

    name: str
    build: Callable[[Maker, bool], Work]
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16)
    needs_fp8: bool = False


def size_of(*tensors: torch.Tensor) -> int:
    """Bytes of all elements."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def widened(value: Any) -> Any:
    """A copy on the CPU with every float in 32 bits, tensors inside dataclasses included: arguments for a twin."""
    if isinstance(value, torch.Tensor):
        copy = value.detach().cpu().clone()
        return copy.float() if copy.dtype.is_floating_point else copy
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: widened(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value
