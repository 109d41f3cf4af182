"""Gemma 3 (text): most layers see a window, every few all; norms before and behind each half of a layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .family import Blueprint, Family
from .hf_config import HfConfig
from .layers.activations import geglu
from .layers.attention import Attention, AttentionSpec
from .layers.loader import Loader
from .layers.mlp import GatedMlp
from .layers.rotary import Rotary
from .spec import HeadsSpec, RopeSpec
from .step import Keeps, Slot, Step

_SHIFT = 1.0
"""Norm weights are stored as their distance from one."""

_LOCAL, _GLOBAL = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3Spec(HeadsSpec):
    """``local`` tells for each layer whether it sees a ``window`` only; those turn positions by ``local_rope``."""

    intermediate: int
    window: int
    local: tuple[bool, ...]
    local_rope: RopeSpec
    rope: RopeSpec
    scale: float
    bias: bool


class Gemma3Layer:
    """One layer; what each half gives is normed again before it is added."""

    def __init__(self, spec: Gemma3Spec, load: Loader, index: int) -> None:
        name, local = f"model.layers.{index}", spec.local[index]
        heads = AttentionSpec(
            spec.hidden, spec.heads, spec.kv_heads, spec.head_dim, spec.bias, spec.bias, norm_eps=spec.eps,
            norm_shift=_SHIFT, scale=spec.scale, window=spec.window if local else 0,
            rotary=_LOCAL if local else _GLOBAL,
        )  # fmt: skip
        self._norms = [
            load.norm(f"{name}.{part}_layernorm", spec.hidden, _SHIFT)
            for part in ("input", "post_attention", "pre_feedforward", "post_feedforward")
        ]
        self._attention = Attention(load, name + ".self_attn", heads)
        self._mlp = GatedMlp(load, name + ".mlp", spec.hidden, spec.intermediate, act=geglu)
        self._ops, self._eps = load.ops, spec.eps

    @property
    def keeps(self) -> Keeps:
        return self._attention.keeps

    def __call__(self, hidden: torch.Tensor, step: Step, slot: Slot) -> torch.Tensor:
        norm, eps = self._ops.rms_norm, self._eps
        before, behind, before_mlp, behind_mlp = self._norms
        hidden += norm(self._attention(norm(hidden, before, eps), step, slot), behind, eps)
        hidden += norm(self._mlp(norm(hidden, before_mlp, eps)), behind_mlp, eps)
        return hidden


def build_gemma3(spec: Gemma3Spec, load: Loader) -> Blueprint:
    """Two kinds of layers and of angles. The embedding's scale is rounded to the weights' type, as the model was
    trained."""
    return Blueprint(
        lambda index: Gemma3Layer(spec, load, index),
        (Rotary.of(spec.local_rope, load), Rotary.of(spec.rope, load)),
        embedding_scale=float(torch.tensor(spec.hidden**0.5).to(load.dtype)),
        norm_shift=_SHIFT,
    )


def read_gemma3(config: HfConfig, has_head: bool) -> Gemma3Spec:
    """The model's numbers. Layers are named one by one or, before transformers 5, by a pattern's length."""
    config.refuse("hidden_activation", "gelu_pytorch_tanh")
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        config.refuse(key, None)
    config.refuse("use_bidirectional_attention", False)
    layers, every = config.layers(), max(1, config.whole("sliding_window_pattern", 6))
    pattern = ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(layers)]
    kinds = {"sliding_attention": True, "full_attention": False}
    head_dim = config.whole("head_dim", 256)
    return Gemma3Spec(
        name=config.name,
        layers=layers,
        hidden=config.whole("hidden_size"),
        intermediate=config.whole("intermediate_size"),
        heads=config.whole("num_attention_heads"),
        kv_heads=config.whole("num_key_value_heads"),
        head_dim=head_dim,
        vocab=config.whole("vocab_size"),
        context=config.whole("max_position_embeddings", 131072),
        eps=config.number("rms_norm_eps", 1e-6),
        tied=config.flag("tie_word_embeddings", True) or not has_head,
        window=config.whole("sliding_window", 4096),
        local=config.kinds("layer_types", layers, kinds, pattern),
        local_rope=config.local_rope(head_dim, config.number("rope_local_base_freq", 10000.0), "sliding_attention"),
        rope=config.rope(head_dim, config.number("rope_theta", 1e6), "full_attention"),
        scale=max(config.number("query_pre_attn_scalar", 256.0), 1e-9) ** -0.5,
        bias=config.flag("attention_bias"),
    )


GEMMA3 = Family(("Gemma3ForCausalLM",), ("gemma3_text",), read_gemma3, build_gemma3)
