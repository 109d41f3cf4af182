"""What a model asks of its operators, and whether the Triton kernels can give it on an architecture.

Asked once, before any weight is loaded: a launch that fails in the middle of serving would be far dearer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import launch
from .platform import Arch, name_of

FORMATS = (torch.float32, torch.float16, torch.bfloat16)
"""Number formats that the kernels compute in."""


@dataclass(frozen=True, slots=True)
class Demand:
    """``dtype`` of weights and pool; ``heads`` of queries, ``kv_heads`` of keys and the ``width`` of one head, 0 where
    a model has no such attention. Latent attention has ``latent`` columns that are values too, and a ``width`` with
    those that carry the position."""

    dtype: torch.dtype
    heads: int = 0
    kv_heads: int = 0
    width: int = 0
    latent: int = 0


ANYTHING = Demand(torch.float32)
"""Nothing is known of the model: whatever can run at all will do."""


def obstacle(demand: Demand, arch: Arch) -> str | None:
    """Why the kernels cannot compute such a model on ``arch``; None if they can."""
    if demand.dtype not in FORMATS:
        known = ", ".join(name_of(kind) for kind in FORMATS)
        return f"the kernels compute in {known}, not in {name_of(demand.dtype)}"
    if arch.vendor == "none" and demand.dtype == torch.bfloat16:
        return "Triton's interpreter gets bfloat16 wrong: interpreted kernels take float32 or float16"
    if demand.kv_heads and demand.heads % demand.kv_heads:
        return f"{demand.heads} query heads cannot share {demand.kv_heads} key heads evenly"
    turned = demand.width - demand.latent
    if demand.latent and launch.power_of_two(turned) != turned:
        return f"latent keys must have a power of two of columns beside the latent ones, not {turned}"
    extents = (demand.latent, turned) if demand.latent else (demand.width,)
    if arch.vendor != "none" and any(0 < one < launch.MIN_DOT for one in extents):
        return f"matrix units take {launch.MIN_DOT} columns of a head or more, not {min(one for one in extents if one)}"
    if demand.width:
        needed = launch.least_attention_bytes(arch, demand.width, demand.latent, demand.dtype.itemsize)
        if needed > arch.shared_bytes:
            return (
                f"attention over heads of {demand.width} columns in {name_of(demand.dtype)} needs {needed} bytes of "
                f"shared memory, and {arch.name} has {arch.shared_bytes}"
            )
    return None
