"""gpt-oss: layers that see a window and layers that see all take turns, each head has a sink, experts have biases.

Experts come in MXFP4 as published, or plain with inputs before outputs; gates and ups alternate in both.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.ops import ExpertWeights

from .family import Blueprint, Family
from .hf_config import HfConfig
from .layers.activations import ClampedSwiglu
from .layers.attention import Attention, AttentionSpec
from .layers.loader import Loader
from .layers.moe import MoeSpec, Names, SparseMoe
from .layers.prenorm import PreNormLayer
from .layers.rotary import Rotary
from .layers.split import span
from .mxfp4 import GROUP, dequantize_mxfp4
from .spec import HeadsSpec, RopeSpec

_NAMES = Names(router="router")


@dataclass(frozen=True, slots=True, kw_only=True)
class GptOssSpec(HeadsSpec):
    """``local`` tells for each layer whether it sees a ``window`` only; ``alpha`` and ``limit`` are those of the
    activation."""

    window: int
    local: tuple[bool, ...]
    rope: RopeSpec
    bias: bool
    moe: MoeSpec
    alpha: float
    limit: float


def gpt_oss_layer(spec: GptOssSpec, load: Loader, index: int) -> PreNormLayer:
    """One layer."""
    name = f"model.layers.{index}"
    heads = AttentionSpec(
        spec.hidden, spec.heads, spec.kv_heads, spec.head_dim, spec.bias, spec.bias,
        window=spec.window if spec.local[index] else 0, sinks=True,
    )  # fmt: skip
    attention = Attention(load, name + ".self_attn", heads)
    experts = ExpertReader(spec, load, name + ".mlp.experts")
    mlp = SparseMoe(load, name + ".mlp", spec.hidden, spec.moe, _NAMES, experts=experts, router_bias=True)
    return PreNormLayer(load, name, attention, mlp, hidden=spec.hidden, eps=spec.eps)


class ExpertReader:
    """Satisfies ``LoadExperts``. Of an inner dimension that ranks share, the first one has the output's biases."""

    def __init__(self, spec: GptOssSpec, load: Loader, name: str) -> None:
        self._spec, self._load, self._name = spec, load, name

    def __call__(self, experts: range, inner: range) -> ExpertWeights:
        moe, hidden, load = self._spec.moe, self._spec.hidden, self._load
        both = range(2 * inner.start, 2 * inner.stop)
        if load.has(self._name + ".gate_up_proj_blocks"):
            up = self._packed("gate_up_proj", 2 * moe.width, hidden, experts)[:, span(both)]
            down = self._packed("down_proj", hidden, moe.width, experts)[:, :, span(inner)]
        else:
            shape, part = (moe.experts, hidden, 2 * moe.width), (span(experts), slice(None), span(both))
            up = load.raw(self._name + ".gate_up_proj", shape, part).transpose(1, 2)
            shape, part = (moe.experts, moe.width, hidden), (span(experts), span(inner), slice(None))
            down = load.raw(self._name + ".down_proj", shape, part).transpose(1, 2)
        up_bias = load.raw(self._name + ".gate_up_proj_bias", (moe.experts, 2 * moe.width), (span(experts), span(both)))
        down_bias = load.raw(self._name + ".down_proj_bias", (moe.experts, hidden), (span(experts),))
        return ExpertWeights(
            torch.cat((up[:, 0::2], up[:, 1::2]), dim=1),
            down,
            ClampedSwiglu(self._spec.alpha, self._spec.limit),
            torch.cat((up_bias[:, 0::2], up_bias[:, 1::2]), dim=1),
            down_bias if inner.start == 0 else None,
        )

    def _packed(self, part: str, rows: int, columns: int, experts: range) -> torch.Tensor:
        """Whole rows of MXFP4, dequantized one expert at a time."""
        count, groups = self._spec.moe.experts, -(-columns // GROUP)
        found = []
        for expert in experts:
            own = (slice(expert, expert + 1),)
            blocks = self._load.packed(f"{self._name}.{part}_blocks", (count, rows, groups, GROUP // 2), own)
            scales = self._load.packed(f"{self._name}.{part}_scales", (count, rows, groups), own)
            found.append(dequantize_mxfp4(blocks, scales)[..., :columns])
        return torch.cat(found)


def build_gpt_oss(spec: GptOssSpec, load: Loader) -> Blueprint:
    """Two kinds of layers, one of angles."""
    return Blueprint(lambda index: gpt_oss_layer(spec, load, index), (Rotary.of(spec.rope, load),))


def read_gpt_oss(config: HfConfig, has_head: bool) -> GptOssSpec:
    """The model's numbers."""
    config.refuse("hidden_act", "silu")
    layers, kinds = config.layers(), {"sliding_attention": True, "full_attention": False}
    turns = ["full_attention" if i % 2 else "sliding_attention" for i in range(layers)]
    head_dim = config.whole("head_dim", 64)
    moe = MoeSpec(
        experts=config.whole("num_local_experts", also="num_experts"),
        top_k=config.whole("num_experts_per_tok", also="experts_per_token"),
        width=config.whole("intermediate_size"),
    )
    return GptOssSpec(
        name=config.name,
        layers=layers,
        hidden=config.whole("hidden_size"),
        heads=config.whole("num_attention_heads"),
        kv_heads=config.whole("num_key_value_heads"),
        head_dim=head_dim,
        vocab=config.whole("vocab_size"),
        context=config.whole("max_position_embeddings", 131072),
        eps=config.number("rms_norm_eps", 1e-5),
        tied=config.flag("tie_word_embeddings") or not has_head,
        window=config.whole("sliding_window", 128),
        local=config.kinds("layer_types", layers, kinds, turns),
        rope=config.rope(head_dim, config.number("rope_theta", 150000.0)),
        bias=config.flag("attention_bias", True),
        moe=moe,
        alpha=config.number("swiglu_alpha", 1.702),
        limit=config.number("swiglu_limit", 7.0),
    )


GPT_OSS = Family(("GptOssForCausalLM",), ("gpt_oss",), read_gpt_oss, build_gpt_oss, formats=("mxfp4",))
