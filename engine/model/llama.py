"""The Llama family: grouped-query attention, rotary positions, SwiGLU, RMS norms before each half of a layer."""

from __future__ import annotations

from .family import Blueprint, Family
from .hf_config import HfConfig
from .layers.attention import Attention, AttentionSpec
from .layers.loader import Loader
from .layers.mlp import GatedMlp
from .layers.prenorm import PreNormLayer
from .layers.rotary import Rotary
from .spec import LlamaSpec


def llama_layer(spec: LlamaSpec, load: Loader, index: int) -> PreNormLayer:
    """One layer."""
    name, bias = f"model.layers.{index}", spec.attention_bias
    shape = AttentionSpec(spec.hidden, spec.heads, spec.kv_heads, spec.head_dim, bias=bias, out_bias=bias)
    attention = Attention(load, name + ".self_attn", shape)
    mlp = GatedMlp(load, name + ".mlp", spec.hidden, spec.intermediate, bias=spec.mlp_bias)
    return PreNormLayer(load, name, attention, mlp, hidden=spec.hidden, eps=spec.eps)


def build_llama(spec: LlamaSpec, load: Loader) -> Blueprint:
    """One kind of layer, one of angles."""
    return Blueprint(lambda index: llama_layer(spec, load, index), (Rotary.of(spec.rope, load),))


def read_llama(config: HfConfig, has_head: bool) -> LlamaSpec:
    """The model's numbers out of ``config.json``."""
    config.refuse("hidden_act", "silu")
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    head_dim = config.whole("head_dim", hidden // max(heads, 1))
    return LlamaSpec(
        name=config.name,
        layers=config.layers(),
        hidden=hidden,
        intermediate=config.whole("intermediate_size"),
        heads=heads,
        kv_heads=config.whole("num_key_value_heads", heads),
        head_dim=head_dim,
        vocab=config.whole("vocab_size"),
        context=config.whole("max_position_embeddings", 2048),
        eps=config.number("rms_norm_eps", 1e-6),
        rope=config.rope(head_dim, config.number("rope_theta", 10000.0)),
        tied=config.flag("tie_word_embeddings") or not has_head,
        attention_bias=config.flag("attention_bias"),
        mlp_bias=config.flag("mlp_bias"),
    )


LLAMA = Family(("LlamaForCausalLM",), ("llama",), read_llama, build_llama)
