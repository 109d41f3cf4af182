"""What fits: weights, workspace and the tokens of cache that remain. Capacity only, no time.

A rank holds its share of the weights, a workspace for activations and communication, and gives the rest of the
usable share of its memory to the cache.
"""

from __future__ import annotations

from energyopt.core.config import ParallelLayout

from .hardware import Gpu
from .models import ModelSpec
from .work import KV_BYTES, kv_split

USABLE = 0.9
"""Share of a device's memory that an engine takes; the default of vLLM."""
WORKSPACE = 4.0e9
"""Bytes a rank keeps for activations, graphs and communication: 3.5 GB in aiconfigurator plus buffers (empirical)."""
HEADROOM = 0.02
"""Share of the usable memory left alone: a plan must not fail on fragmentation."""


def weight_bytes_per_device(spec: ModelSpec, layout: ParallelLayout) -> float:
    """Bytes of weights on one device: experts split over ``ep`` (or ``tp``), the rest over ``tp``, all over ``pp``."""
    whole = spec.weight_bytes()
    if not spec.moe:
        return whole / (layout.tp * layout.pp)
    experts = (
        whole
        - spec.model_copy(update={"moe_layers": spec.moe_layers, "experts": 1, "experts_per_token": 1}).weight_bytes()
    )
    split = max(layout.ep, layout.tp)
    return experts / (split * layout.pp) + (whole - experts) / (layout.tp * layout.pp)


def kv_tokens(spec: ModelSpec, gpu: Gpu, layout: ParallelLayout) -> float:
    """Tokens that the cache of one engine replica (one attention group) holds; 0 or less means it does not fit."""
    usable = gpu.value("memory") * USABLE * (1 - HEADROOM)
    left = usable - weight_bytes_per_device(spec, layout) - WORKSPACE
    per_token = spec.kv_bytes_per_token(KV_BYTES) / (kv_split(spec, layout) * layout.pp)
    return left / per_token
