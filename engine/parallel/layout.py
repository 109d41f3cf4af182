"""From a model that was read to the dimensions that the layout rules ask for."""

from __future__ import annotations

from dataclasses import dataclass

from energyopt.core.config import ParallelLayout
from energyopt.core.errors import ConfigError
from energyopt.core.layouts import check_layout, describe_layout

from ..model.qwen import QwenSpec
from ..model.spec import DecoderSpec, LlamaSpec


@dataclass(frozen=True, slots=True)
class ModelDimensions:
    """Satisfies ``energyopt.core.layouts.Dimensions``."""

    heads: int
    kv_heads: int
    ffn: int
    layers: int
    experts: int = 0
    moe_ffn: int = 0
    mla: bool = False


def dimensions(spec: DecoderSpec) -> ModelDimensions | None:
    """None for a family that only one rank computes."""
    if isinstance(spec, LlamaSpec):
        return ModelDimensions(spec.heads, spec.kv_heads, spec.intermediate, spec.layers)
    if isinstance(spec, QwenSpec):
        moe = spec.moe
        dense = spec.intermediate if moe is None or len(spec.sparse) < spec.layers else 0
        experts, width = (moe.experts, moe.width) if moe else (0, 0)
        return ModelDimensions(spec.heads, spec.kv_heads, dense, spec.layers, experts, width)
    return None


def check_model_layout(spec: DecoderSpec, layout: ParallelLayout) -> None:
    """Raises ConfigError where the model cannot be computed in that layout, with the rule that it breaks."""
    if layout == ParallelLayout():
        return
    found = dimensions(spec)
    if found is None:
        raise ConfigError(
            f"The layout {describe_layout(layout)} is not allowed: models of this family run on one rank, tp=1."
        )
    check_layout(found, layout)
