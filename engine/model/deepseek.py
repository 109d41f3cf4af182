"""DeepSeek-V2 and V3, and Kimi-K2, which has V3's architecture: latent attention, shared and routed experts."""

from __future__ import annotations

from dataclasses import dataclass

from energyopt.core.errors import UnsupportedModelError
from kernels.ops import Scoring
from kernels.rope_scaling import Yarn

from ..files import shown
from .family import Blueprint, Family
from .hf_config import HfConfig, yarn_stretch
from .layers.latent import LatentAttention, LatentSpec
from .layers.loader import Loader
from .layers.mlp import GatedMlp
from .layers.moe import MoeSpec, SparseMoe
from .layers.prenorm import PreNormLayer
from .layers.rotary import Rotary
from .spec import DecoderSpec, RopeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekSpec(DecoderSpec):
    """``sparse`` tells for each layer whether its feed-forward is the mixture ``moe``, or one of ``intermediate``
    columns."""

    intermediate: int
    attention: LatentSpec
    rope: RopeSpec
    moe: MoeSpec
    sparse: tuple[bool, ...]


def deepseek_layer(spec: DeepseekSpec, load: Loader, index: int) -> PreNormLayer:
    """One layer."""
    name = f"model.layers.{index}"
    attention = LatentAttention(load, name + ".self_attn", spec.attention)
    mlp: GatedMlp | SparseMoe
    if spec.sparse[index]:
        mlp = SparseMoe(load, name + ".mlp", spec.hidden, spec.moe)
    else:
        mlp = GatedMlp(load, name + ".mlp", spec.hidden, spec.intermediate)
    return PreNormLayer(load, name, attention, mlp, hidden=spec.hidden, eps=spec.eps)


def build_deepseek(spec: DeepseekSpec, load: Loader) -> Blueprint:
    """One kind of layer but for its feed-forward, one of angles."""
    return Blueprint(lambda index: deepseek_layer(spec, load, index), (Rotary.of(spec.rope, load),))


def read_deepseek(config: HfConfig, has_head: bool, moe: MoeSpec) -> DeepseekSpec:
    """What both versions have."""
    config.refuse("hidden_act", "silu")
    config.refuse("moe_layer_freq", 1)
    hidden, layers, rope = config.whole("hidden_size"), config.layers(), config.whole("qk_rope_head_dim", 64)
    positions = config.rope(rope, config.number("rope_theta", 10000.0))
    first = config.whole("first_k_dense_replace", 0)
    return DeepseekSpec(
        name=config.name,
        layers=layers,
        hidden=hidden,
        intermediate=config.whole("intermediate_size"),
        vocab=config.whole("vocab_size"),
        context=config.whole("max_position_embeddings", 4096),
        eps=config.number("rms_norm_eps", 1e-6),
        tied=config.flag("tie_word_embeddings") or not has_head,
        attention=read_latent(config, hidden, positions),
        rope=positions,
        moe=moe,
        sparse=tuple(index >= first for index in range(layers)),
    )


def read_latent(config: HfConfig, hidden: int, positions: RopeSpec | None) -> LatentSpec:
    """The attention. Where YaRN stretches positions, ``mscale_all_dim`` sharpens all scores twice."""
    nope, rope = config.whole("qk_nope_head_dim", 128), config.whole("qk_rope_head_dim", 64)
    scale = max(nope + rope, 1) ** -0.5
    if positions is not None and isinstance(positions.scaling, Yarn):
        found = config.part("rope_parameters" if config.get("rope_parameters") is not None else "rope_scaling")
        if sharper := found.number("mscale_all_dim", 0.0):
            scale *= yarn_stretch(positions.scaling.factor, sharper) ** 2
    return LatentSpec(
        hidden,
        config.whole("num_attention_heads"),
        nope,
        rope,
        config.whole("v_head_dim", 128),
        config.whole("kv_lora_rank", 512),
        None if config.get("q_lora_rank") is None else config.whole("q_lora_rank"),
        scale,
        bias=config.flag("attention_bias"),
        turns=positions is not None,
        interleaved=positions is not None and config.flag("rope_interleave", True),
    )


def read_moe(config: HfConfig, scoring: Scoring, *, bias: bool, grouped: bool) -> MoeSpec:
    """The mixture. ``grouped``: experts are chosen within the best groups."""
    width = config.whole("moe_intermediate_size")
    return MoeSpec(
        experts=config.whole("n_routed_experts", also="num_local_experts"),
        top_k=config.whole("num_experts_per_tok"),
        width=width,
        scoring=scoring,
        renormalize=config.flag("norm_topk_prob"),
        scale=config.number("routed_scaling_factor", 1.0),
        groups=config.whole("n_group", 1) if grouped else 1,
        top_groups=config.whole("topk_group", 1) if grouped else 1,
        bias=bias,
        shared=width * config.whole("n_shared_experts", 1),
    )


def read_v2(config: HfConfig, has_head: bool) -> DeepseekSpec:
    """V2: softmax scores, which are not made to add up to one."""
    method = config.get("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise UnsupportedModelError(
            f"{config.path}: topk_method {shown(method)} is not supported; greedy and group_limited_greedy are."
        )
    config.refuse("norm_topk_prob", False)
    moe = read_moe(config, "softmax", bias=False, grouped=method == "group_limited_greedy")
    return read_deepseek(config, has_head, moe)


def read_v3(config: HfConfig, has_head: bool) -> DeepseekSpec:
    """V3 and Kimi-K2: sigmoid scores, and a correction by which experts are chosen."""
    config.refuse("scoring_func", "sigmoid")
    config.refuse("topk_method", "noaux_tc")
    return read_deepseek(config, has_head, read_moe(config, "sigmoid", bias=True, grouped=True))


DEEPSEEK_V2 = Family(("DeepseekV2ForCausalLM",), ("deepseek_v2",), read_v2, build_deepseek)
DEEPSEEK_V3 = Family(("DeepseekV3ForCausalLM",), ("deepseek_v3", "kimi_k2"), read_v3, build_deepseek, formats=("fp8",))
