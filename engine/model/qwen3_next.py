"""Qwen3-Next: three layers of Gated DeltaNet, then one of gated attention; experts, one of them shared and gated."""

from __future__ import annotations

from dataclasses import dataclass

from .family import Blueprint, Family
from .hf_config import HfConfig
from .layers.attention import Attention, AttentionSpec
from .layers.delta import DeltaSpec, GatedDeltaNet
from .layers.loader import Loader
from .layers.mlp import GatedMlp
from .layers.moe import MoeSpec, Names, SparseMoe
from .layers.prenorm import PreNormLayer
from .layers.rotary import Rotary
from .spec import HeadsSpec, RopeSpec

_SHIFT = 1.0
"""Norm weights are stored as their distance from one, but for the gated norm."""

_NAMES = Names(shared="shared_expert")


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3NextSpec(HeadsSpec):
    """``recurrent`` and ``sparse`` tell for each layer whether it is a DeltaNet and whether it has experts."""

    intermediate: int
    rope: RopeSpec
    bias: bool
    delta: DeltaSpec
    moe: MoeSpec
    recurrent: tuple[bool, ...]
    sparse: tuple[bool, ...]


def qwen3_next_layer(spec: Qwen3NextSpec, load: Loader, index: int) -> PreNormLayer:
    """One layer, with attention of either kind."""
    name = f"model.layers.{index}"
    mixer: GatedDeltaNet | Attention
    if spec.recurrent[index]:
        mixer = GatedDeltaNet(load, name + ".linear_attn", spec.delta)
    else:
        heads = AttentionSpec(
            spec.hidden, spec.heads, spec.kv_heads, spec.head_dim, spec.bias, spec.bias,
            norm_eps=spec.eps, norm_shift=_SHIFT, gated=True,
        )  # fmt: skip
        mixer = Attention(load, name + ".self_attn", heads)
    mlp: GatedMlp | SparseMoe
    if spec.sparse[index]:
        mlp = SparseMoe(load, name + ".mlp", spec.hidden, spec.moe, _NAMES, shared_gate=True)
    else:
        mlp = GatedMlp(load, name + ".mlp", spec.hidden, spec.intermediate)
    return PreNormLayer(load, name, mixer, mlp, hidden=spec.hidden, eps=spec.eps, shift=_SHIFT)


def build_qwen3_next(spec: Qwen3NextSpec, load: Loader) -> Blueprint:
    """Two kinds of layers, one of angles over a part of each head."""
    rotary = Rotary.of(spec.rope, load)
    return Blueprint(lambda index: qwen3_next_layer(spec, load, index), (rotary,), norm_shift=_SHIFT)


def read_qwen3_next(config: HfConfig, has_head: bool) -> Qwen3NextSpec:
    """The model's numbers."""
    config.refuse("hidden_act", "silu")
    layers, hidden, head_dim = config.layers(), config.whole("hidden_size"), config.whole("head_dim", 256)
    every = max(1, config.whole("full_attention_interval", 4))
    pattern = ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(layers)]
    step, dense = max(1, config.whole("decoder_sparse_step", 1)), frozenset(config.numbers("mlp_only_layers"))
    share = config.part("rope_parameters").number("partial_rotary_factor", config.number("partial_rotary_factor", 0.25))
    eps = config.number("rms_norm_eps", 1e-6)
    return Qwen3NextSpec(
        name=config.name,
        layers=layers,
        hidden=hidden,
        intermediate=config.whole("intermediate_size"),
        heads=config.whole("num_attention_heads"),
        kv_heads=config.whole("num_key_value_heads"),
        head_dim=head_dim,
        vocab=config.whole("vocab_size"),
        context=config.whole("max_position_embeddings", 32768),
        eps=eps,
        tied=config.flag("tie_word_embeddings") or not has_head,
        rope=config.rope(int(head_dim * share), config.number("rope_theta", 10000.0)),
        bias=config.flag("attention_bias"),
        delta=DeltaSpec(
            hidden,
            config.whole("linear_num_key_heads", 16),
            config.whole("linear_num_value_heads", 32),
            config.whole("linear_key_head_dim", 128),
            config.whole("linear_value_head_dim", 128),
            config.whole("linear_conv_kernel_dim", 4),
            eps,
        ),
        moe=MoeSpec(
            experts=config.whole("num_experts", also="num_local_experts"),
            top_k=config.whole("num_experts_per_tok"),
            width=config.whole("moe_intermediate_size"),
            renormalize=config.flag("norm_topk_prob", True),
            shared=config.whole("shared_expert_intermediate_size"),
        ),
        recurrent=config.kinds("layer_types", layers, {"linear_attention": True, "full_attention": False}, pattern),
        sparse=tuple((i + 1) % step == 0 and i not in dense for i in range(layers)),
    )


QWEN3_NEXT = Family(("Qwen3NextForCausalLM",), ("qwen3_next",), read_qwen3_next, build_qwen3_next)
