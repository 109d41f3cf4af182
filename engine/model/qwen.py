"""The dense and the sparse Qwens: Qwen2 and 2.5 (biases at query, key and value), Qwen3 (a norm over each query and key
head), Qwen3-MoE (experts instead of one feed-forward)."""

from __future__ import annotations

from dataclasses import dataclass

from energyopt.core.errors import UnsupportedModelError

from .family import Blueprint, Family
from .hf_config import HfConfig
from .layers.attention import Attention, AttentionSpec
from .layers.loader import Loader
from .layers.mlp import GatedMlp
from .layers.moe import MoeSpec, SparseMoe
from .layers.prenorm import PreNormLayer
from .layers.rotary import Rotary
from .spec import HeadsSpec, RopeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenSpec(HeadsSpec):
    """``sparse`` are the layers whose feed-forward is the mixture ``moe``; ``norms``: each query and key head is
    normed."""

    intermediate: int
    rope: RopeSpec
    bias: bool
    out_bias: bool
    norms: bool
    moe: MoeSpec | None = None
    sparse: frozenset[int] = frozenset()


def qwen_layer(spec: QwenSpec, load: Loader, index: int) -> PreNormLayer:
    """One layer."""
    name, eps = f"model.layers.{index}", spec.eps if spec.norms else None
    heads = AttentionSpec(spec.hidden, spec.heads, spec.kv_heads, spec.head_dim, spec.bias, spec.out_bias, norm_eps=eps)
    attention = Attention(load, name + ".self_attn", heads)
    mlp: GatedMlp | SparseMoe
    if spec.moe is not None and index in spec.sparse:
        mlp = SparseMoe(load, name + ".mlp", spec.hidden, spec.moe)
    else:
        mlp = GatedMlp(load, name + ".mlp", spec.hidden, spec.intermediate)
    return PreNormLayer(load, name, attention, mlp, hidden=spec.hidden, eps=spec.eps)


def build_qwen(spec: QwenSpec, load: Loader) -> Blueprint:
    """One kind of layer but for its feed-forward, one of angles."""
    return Blueprint(lambda index: qwen_layer(spec, load, index), (Rotary.of(spec.rope, load),))


def read_qwen(config: HfConfig, has_head: bool, *, bias: bool, norms: bool, moe: MoeSpec | None = None) -> QwenSpec:
    """What all of them have."""
    config.refuse("hidden_act", "silu")
    if config.flag("use_sliding_window"):
        raise UnsupportedModelError(f"{config.path}: use_sliding_window true is not supported; false is.")
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    layers = config.layers()
    head_dim = config.whole("head_dim", hidden // max(heads, 1))
    step, dense = config.whole("decoder_sparse_step", 1), frozenset(config.numbers("mlp_only_layers"))
    sparse = frozenset(i for i in range(layers) if moe and (i + 1) % max(step, 1) == 0 and i not in dense)
    return QwenSpec(
        name=config.name,
        layers=layers,
        hidden=hidden,
        intermediate=config.whole("intermediate_size"),
        heads=heads,
        kv_heads=config.whole("num_key_value_heads", heads),
        head_dim=head_dim,
        vocab=config.whole("vocab_size"),
        context=config.whole("max_position_embeddings", 32768),
        eps=config.number("rms_norm_eps", 1e-6),
        rope=config.rope(head_dim, config.number("rope_theta", 10000.0)),
        tied=config.flag("tie_word_embeddings") or not has_head,
        bias=config.flag("attention_bias", bias),
        out_bias=config.flag("attention_bias"),
        norms=norms,
        moe=moe,
        sparse=sparse,
    )


def read_qwen2(config: HfConfig, has_head: bool) -> QwenSpec:
    return read_qwen(config, has_head, bias=True, norms=False)


def read_qwen3(config: HfConfig, has_head: bool) -> QwenSpec:
    return read_qwen(config, has_head, bias=False, norms=True)


def read_qwen3_moe(config: HfConfig, has_head: bool) -> QwenSpec:
    moe = MoeSpec(
        experts=config.whole("num_experts", also="num_local_experts"),
        top_k=config.whole("num_experts_per_tok"),
        width=config.whole("moe_intermediate_size"),
        renormalize=config.flag("norm_topk_prob"),
    )
    return read_qwen(config, has_head, bias=False, norms=True, moe=moe)


QWEN2 = Family(("Qwen2ForCausalLM",), ("qwen2",), read_qwen2, build_qwen)
QWEN3 = Family(("Qwen3ForCausalLM",), ("qwen3",), read_qwen3, build_qwen)
QWEN3_MOE = Family(("Qwen3MoeForCausalLM",), ("qwen3_moe",), read_qwen3_moe, build_qwen)
