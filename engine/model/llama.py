"""The Llama family: grouped-query attention, rotary positions, SwiGLU, RMS norms before each half of a layer."""

from __future__ import annotations

import torch

from energyopt.core.errors import UnsupportedModelError

from .family import Blueprint, Family
from .hf_config import HfConfig
from .layers.attention import Attention, AttentionSpec
from .layers.loader import Loader
from .layers.mlp import GatedMlp
from .layers.rotary import Rotary
from .spec import LlamaSpec, RopeScaling
from .step import Keeps, Slot, Step


class LlamaLayer:
    """One layer: attention and feed-forward, each behind a norm and beside the residual."""

    def __init__(self, spec: LlamaSpec, load: Loader, index: int) -> None:
        name = f"model.layers.{index}"
        bias = spec.attention_bias
        shape = AttentionSpec(spec.hidden, spec.heads, spec.kv_heads, spec.head_dim, bias=bias, out_bias=bias)
        self._input_norm = load.norm(name + ".input_layernorm", spec.hidden)
        self._attention = Attention(load, name + ".self_attn", shape)
        self._mlp_norm = load.norm(name + ".post_attention_layernorm", spec.hidden)
        self._mlp = GatedMlp(load, name + ".mlp", spec.hidden, spec.intermediate, bias=spec.mlp_bias)
        self._ops, self._eps = load.ops, spec.eps

    @property
    def keeps(self) -> Keeps:
        return self._attention.keeps

    def __call__(self, hidden: torch.Tensor, step: Step, slot: Slot) -> torch.Tensor:
        ops, eps = self._ops, self._eps
        seen = self._attention(ops.rms_norm(hidden, self._input_norm, eps), step, slot)
        normed, hidden = ops.add_rms_norm(seen, hidden, self._mlp_norm, eps)
        hidden += self._mlp(normed)
        return hidden


def build_llama(spec: LlamaSpec, load: Loader) -> Blueprint:
    """One kind of layer, one of angles."""
    rotary = Rotary(spec.frequencies(), load.device, load.activations)
    return Blueprint(lambda index: LlamaLayer(spec, load, index), (rotary,))


def read_llama(config: HfConfig, has_head: bool) -> LlamaSpec:
    """The model's numbers out of ``config.json``."""
    config.refuse("hidden_act", "silu")
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    return LlamaSpec(
        name=config.name,
        layers=config.layers(),
        hidden=hidden,
        intermediate=config.whole("intermediate_size"),
        heads=heads,
        kv_heads=config.whole("num_key_value_heads", heads),
        head_dim=config.whole("head_dim", hidden // max(heads, 1)),
        vocab=config.whole("vocab_size"),
        context=config.whole("max_position_embeddings", 2048),
        eps=config.number("rms_norm_eps", 1e-6),
        rope_theta=_theta(config),
        rope_scaling=_scaling(config),
        tied=config.flag("tie_word_embeddings") or not has_head,
        attention_bias=config.flag("attention_bias"),
        mlp_bias=config.flag("mlp_bias"),
    )


def _rope(config: HfConfig) -> HfConfig:
    """``rope_parameters`` (transformers 5) or ``rope_scaling`` (before)."""
    return config.part("rope_parameters") if config.get("rope_parameters") is not None else config.part("rope_scaling")


def _theta(config: HfConfig) -> float:
    return _rope(config).number("rope_theta", config.number("rope_theta", 10000.0))


def _scaling(config: HfConfig) -> RopeScaling | None:
    rope = _rope(config)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling("linear", factor=rope.number("factor"))
    if kind == "llama3":
        return RopeScaling(
            "llama3",
            factor=rope.number("factor"),
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
            original_context=rope.whole("original_max_position_embeddings"),
        )
    raise UnsupportedModelError(f"{config.path}: rope type {kind!r} is not supported; default, linear and llama3 are.")


LLAMA = Family(("LlamaForCausalLM",), ("llama",), read_llama, build_llama)
