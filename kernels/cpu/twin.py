"""The native kernels' arithmetic, spelled out in torch: the slow twin that every variant must equal.

Products of quantised weights with activations rounded to eight bits, keys and values rounded to bfloat16, everything
else in float32; no pages, no cache, no batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from .blocks import GROUP, Blocks, codes_of, dequantize


@dataclass(frozen=True, slots=True)
class TwinLayer:
    """Weights of one layer; biases may be None."""

    input_norm: torch.Tensor
    mlp_norm: torch.Tensor
    qkv: Blocks
    qkv_bias: torch.Tensor | None
    out: Blocks
    out_bias: torch.Tensor | None
    gate_up: Blocks
    gate_up_bias: torch.Tensor | None
    down: Blocks
    down_bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class TwinModel:
    """A Llama: ``frequencies`` (head_dim / 2) are radians a token."""

    heads: int
    kv_heads: int
    eps: float
    frequencies: torch.Tensor
    embedding: Blocks
    head: Blocks
    norm: torch.Tensor
    layers: Sequence[TwinLayer]


def rounded_activations(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (rows, groups, 32) from -127 to 127 and scales (rows, groups) of ``x`` (rows, width), both float32."""
    groups = functional.pad(x, (0, -x.shape[1] % GROUP)).view(len(x), -1, GROUP)
    peaks = groups.abs().amax(-1)
    inverse = torch.where(peaks > 0, 127 / peaks, 0.0)
    return (groups * inverse.unsqueeze(-1)).round(), peaks / 127


def multiply(weight: Blocks, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """(rows, outputs) = ``x`` (rows, width) times the weight, summed in integers within each group."""
    codes, scales, lows = codes_of(weight)
    own, own_scales = rounded_activations(x)
    dots = torch.einsum("tgi,rgi->trg", own, codes)
    sums = own.sum(-1) * own_scales
    product = torch.einsum("trg,rg,tg->tr", dots, scales, own_scales) + sums @ lows.T
    return product if bias is None else product + bias


def forward(model: TwinModel, tokens: Sequence[int]) -> torch.Tensor:
    """Logits (tokens, vocab) after each token of one text."""
    count = len(tokens)
    hidden_width = len(model.norm)
    hidden = dequantize(model.embedding)[torch.tensor(tokens), :hidden_width]
    angles = torch.outer(torch.arange(count).float(), model.frequencies)
    for layer in model.layers:
        qkv = multiply(layer.qkv, _norm(hidden, layer.input_norm, model.eps), layer.qkv_bias)
        hidden = hidden + multiply(layer.out, _attention(model, qkv, angles), layer.out_bias)
        gate, up = multiply(layer.gate_up, _norm(hidden, layer.mlp_norm, model.eps), layer.gate_up_bias).chunk(2, -1)
        hidden = hidden + multiply(layer.down, functional.silu(gate) * up, layer.down_bias)
    return multiply(model.head, _norm(hidden, model.norm, model.eps))


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def _attention(model: TwinModel, qkv: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    rows, dim = len(qkv), 2 * angles.shape[1]
    heads = qkv.view(rows, -1, dim)
    queries, keys, values = torch.split(heads, [model.heads, model.kv_heads, model.kv_heads], dim=1)
    keys, values = (_narrow(part) for part in (_turned(keys, angles), values))
    share = model.heads // model.kv_heads
    keys, values = (part.repeat_interleave(share, dim=1) for part in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", _turned(queries, angles), keys) * dim**-0.5
    seen = torch.ones(rows, rows, dtype=torch.bool).tril()
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values).flatten(1)


def _turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def _narrow(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().float()
