"""Which implementation of each operator a model uses: an explicit table, chosen once by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from . import fused, linear, reference
from .pages import Pages


@dataclass(frozen=True, slots=True)
class Ops:
    """The operators of one model on one device; signatures as in ``reference``."""

    name: str
    make_linear: Callable[[torch.Tensor, torch.Tensor | None, torch.dtype, torch.device], linear.Linear]
    rms_norm: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
    rope: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    swiglu: Callable[[torch.Tensor], torch.Tensor]
    store_kv: Callable[[torch.Tensor, torch.Tensor, Pages], None]
    attention: Callable[[torch.Tensor, torch.Tensor, Pages], torch.Tensor]


REFERENCE = Ops(
    "reference",
    make_linear=linear.make_plain_linear,
    rms_norm=reference.rms_norm,
    rope=reference.rope,
    swiglu=reference.swiglu,
    store_kv=reference.store_kv,
    attention=reference.attention,
)
FUSED = Ops(
    "fused",
    make_linear=linear.make_linear,
    rms_norm=fused.rms_norm,
    rope=fused.rope,
    swiglu=fused.swiglu,
    store_kv=fused.store_kv,
    attention=fused.attention,
)
TABLE = {"reference": REFERENCE, "auto": FUSED}


def select_ops(name: str) -> Ops:
    """``auto`` (the fastest here) or ``reference``. Raises ValueError for another name."""
    try:
        return TABLE[name]
    except KeyError as error:
        raise ValueError(f"Unknown kernels {name!r}; known are {', '.join(TABLE)}.") from error
