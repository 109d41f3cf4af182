"""From a model that was read to the dimensions that the layout rules ask for."""

from __future__ import annotations

from dataclasses import dataclass

from energyopt.core.config import ParallelLayout
from energyopt.core.errors import ConfigError
from energyopt.core.layouts import check_layout, describe_layout

from ..model.deepseek import DeepseekSpec
from ..model.gemma3 import Gemma3Spec
from ..model.gpt_oss import GptOssSpec
from ..model.kimi_linear import KimiLinearSpec
from ..model.layers.moe import MoeSpec
from ..model.qwen import QwenSpec
from ..model.qwen3_next import Qwen3NextSpec
from ..model.spec import DecoderSpec, LlamaSpec

Hybrid = Qwen3NextSpec | KimiLinearSpec
"""Families of which some layers keep a state instead of keys and values."""


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
    match spec:
        case LlamaSpec() | Gemma3Spec():
            return ModelDimensions(spec.heads, spec.kv_heads, spec.intermediate, spec.layers)
        case QwenSpec():
            dense = spec.moe is None or len(spec.sparse) < spec.layers
            return _mixed(spec.heads, spec.kv_heads, spec.intermediate if dense else 0, spec.layers, spec.moe)
        case GptOssSpec():
            return _mixed(spec.heads, spec.kv_heads, 0, spec.layers, spec.moe)
        case Qwen3NextSpec():
            return _mixed(spec.heads, spec.kv_heads, _dense(spec), spec.layers, spec.moe)
        case DeepseekSpec() | KimiLinearSpec():
            return _mixed(spec.attention.heads, 1, _dense(spec), spec.layers, spec.moe, mla=True)
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
    if isinstance(spec, Qwen3NextSpec | KimiLinearSpec):
        _check_hybrid(spec, layout)


def _check_hybrid(spec: Hybrid, layout: ParallelLayout) -> None:
    """Recurrent heads go whole to ranks, and stages share their block ids: so each keeps the same of a sequence."""
    if spec.delta.key_heads % layout.tp:
        raise ConfigError(
            f"The layout {describe_layout(layout)} is not allowed: recurrent heads divide over tp, and the model has "
            f"{spec.delta.key_heads}."
        )
    if layout.dcp > 1:
        raise ConfigError(f"dcp = {layout.dcp} is not allowed for a model with recurrent states.")
    size = spec.layers // layout.pp
    stages = [sum(spec.recurrent[stage * size : (stage + 1) * size]) for stage in range(layout.pp)]
    if len(set(stages)) > 1 or stages[0] == size:
        raise ConfigError(
            f"The layout {describe_layout(layout)} is not allowed: each stage must have as many recurrent layers as "
            f"the others and one that is not, and of {size} layers each {stages} are recurrent."
        )


def _mixed(
    heads: int, kv_heads: int, ffn: int, layers: int, moe: MoeSpec | None, *, mla: bool = False
) -> ModelDimensions:
    experts, width = (moe.experts, moe.width) if moe else (0, 0)
    return ModelDimensions(heads, kv_heads, ffn, layers, experts, width, mla)


def _dense(spec: Hybrid | DeepseekSpec) -> int:
    """The width of its dense feed-forwards, 0 where every layer has experts."""
    return 0 if all(spec.sparse) else spec.intermediate
