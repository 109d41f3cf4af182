"""The Llama family: grouped-query attention, rotary positions, SwiGLU, RMS norms before each half of a layer."""

from __future__ import annotations

import torch

from engine.parallel.ports import Place
from kernels.dispatch import Ops

from .decoder import Decoder
from .layers.attention import Attention, AttentionSpec
from .layers.loader import Loader
from .layers.mlp import GatedMlp
from .layers.rotary import Rotary
from .source import WeightSource
from .spec import LlamaSpec
from .step import Keeps, Step


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

    def __call__(self, hidden: torch.Tensor, step: Step, pool: torch.Tensor) -> torch.Tensor:
        ops, eps = self._ops, self._eps
        hidden += self._attention(ops.rms_norm(hidden, self._input_norm, eps), step, pool)
        hidden += self._mlp(ops.rms_norm(hidden, self._mlp_norm, eps))
        return hidden


def load_llama(
    source: WeightSource, ops: Ops, dtype: torch.dtype, device: torch.device, threads: int, place: Place | None = None
) -> Decoder:
    """The model, or ``place``'s part of it. Raises what ``WeightSource.tensor`` raises; ConfigError for a place that
    does not divide it."""
    spec = source.spec
    load = Loader(source, ops, dtype, device, place)
    rotary = Rotary(spec.frequencies(), device, load.activations)
    return Decoder(spec, load, lambda index: LlamaLayer(spec, load, index), rotary, threads)
