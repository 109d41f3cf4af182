"""Kimi Linear: most layers are Kimi Delta Attention, every few latent attention without positions; experts."""

from __future__ import annotations

from dataclasses import dataclass

from .deepseek import read_latent
from .family import Blueprint, Family
from .hf_config import HfConfig
from .layers.delta import DeltaSpec, KimiDelta
from .layers.latent import LatentAttention, LatentSpec
from .layers.loader import Loader
from .layers.mlp import GatedMlp
from .layers.moe import MoeSpec, Names, SparseMoe
from .layers.prenorm import PreNormLayer
from .spec import DecoderSpec

_NAMES = Names(gate="w1", up="w3", down="w2")


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiLinearSpec(DecoderSpec):
    """``recurrent`` and ``sparse`` tell for each layer whether it is delta attention and whether it has experts."""

    intermediate: int
    attention: LatentSpec
    delta: DeltaSpec
    moe: MoeSpec
    recurrent: tuple[bool, ...]
    sparse: tuple[bool, ...]


def kimi_linear_layer(spec: KimiLinearSpec, load: Loader, index: int) -> PreNormLayer:
    """One layer, with attention of either kind."""
    name = f"model.layers.{index}"
    mixer: KimiDelta | LatentAttention
    if spec.recurrent[index]:
        mixer = KimiDelta(load, name + ".self_attn", spec.delta)
    else:
        mixer = LatentAttention(load, name + ".self_attn", spec.attention)
    mlp: GatedMlp | SparseMoe
    if spec.sparse[index]:
        mlp = SparseMoe(load, name + ".block_sparse_moe", spec.hidden, spec.moe, _NAMES)
    else:
        named = name + (".mlp" if load.has(name + ".mlp.gate_proj.weight") else ".block_sparse_moe")
        mlp = GatedMlp(load, named, spec.hidden, spec.intermediate)
    return PreNormLayer(load, name, mixer, mlp, hidden=spec.hidden, eps=spec.eps)


def build_kimi_linear(spec: KimiLinearSpec, load: Loader) -> Blueprint:
    """Two kinds of layers and no angles: the order of tokens is in the recurrence."""
    return Blueprint(lambda index: kimi_linear_layer(spec, load, index), ())


def read_kimi_linear(config: HfConfig, has_head: bool) -> KimiLinearSpec:
    """The model's numbers. Published files put the recurrence's into ``linear_attn_config``, whose lists of layers
    count from one."""
    config.refuse("hidden_act", "silu")
    layers, hidden, linear = config.layers(), config.whole("hidden_size"), config.part("linear_attn_config")
    key = linear.whole("head_dim", config.whole("linear_head_dim", 128))
    heads = linear.whole("num_heads", config.whole("linear_num_heads", 32))
    eps = config.number("rms_norm_eps", 1e-5)
    full = frozenset(linear.numbers("full_attn_layers") or range(5, layers + 1, 4))
    pattern = ["full_attention" if i + 1 in full else "linear_attention" for i in range(layers)]
    first = config.whole("first_k_dense_replace", 1)
    blocks = ["dense" if i < first else "sparse" for i in range(layers)]
    width = config.whole("moe_intermediate_size")
    return KimiLinearSpec(
        name=config.name,
        layers=layers,
        hidden=hidden,
        intermediate=config.whole("intermediate_size"),
        vocab=config.whole("vocab_size"),
        context=config.whole("model_max_length", 1048576, also="max_position_embeddings"),
        eps=eps,
        tied=config.flag("tie_word_embeddings") or not has_head,
        attention=read_latent(config, hidden, None),
        delta=DeltaSpec(
            hidden,
            heads,
            heads,
            key,
            key,
            linear.whole("short_conv_kernel_size", config.whole("linear_conv_kernel_dim", 4)),
            eps,
        ),
        moe=MoeSpec(
            experts=config.whole("num_experts", also="num_local_experts"),
            top_k=config.whole("num_experts_per_token", also="num_experts_per_tok"),
            width=width,
            scoring="sigmoid",
            renormalize=config.flag("moe_renormalize", True, also="norm_topk_prob"),
            scale=config.number("routed_scaling_factor", 1.0),
            groups=config.whole("num_expert_group", 1, also="n_group"),
            top_groups=config.whole("topk_group", 1),
            bias=True,
            shared=width * config.whole("num_shared_experts", 1, also="n_shared_experts"),
        ),
        recurrent=config.kinds("layer_types", layers, {"linear_attention": True, "full_attention": False}, pattern),
        sparse=config.kinds("mlp_layer_types", layers, {"sparse": True, "dense": False}, blocks),
    )


KIMI_LINEAR = Family(("KimiLinearForCausalLM",), ("kimi_linear",), read_kimi_linear, build_kimi_linear)
