"""The Llama family: grouped-query attention, rotary positions, SwiGLU, RMS norms before each half of a layer.

Tensors in, tensors out: requests and blocks are the runner's business. Activations are float32 on a CPU, whatever the
weights are; on a GPU they have the weights' type.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch.nn import functional

from kernels.dispatch import Ops
from kernels.linear import Linear
from kernels.pages import Pages

from .source import WeightSource
from .spec import LlamaSpec


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """Weights of one layer; query, key and value are one product, gate and up another."""

    input_norm: torch.Tensor
    qkv: Linear
    out: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class Llama:
    """A model on one device. ``dtype`` is that of the weights and of the KV pool."""

    def __init__(self, source: WeightSource, ops: Ops, dtype: torch.dtype, device: torch.device, threads: int) -> None:
        self.spec = source.spec
        self.dtype = dtype
        self.device = device
        self.activations = torch.float32 if device.type == "cpu" else dtype
        self._ops = ops
        load = _Loader(source, ops, dtype, device, self.activations)
        for index in range(self.spec.layers):  # a false number of layers must end here, not after as many tasks
            load.layer_norm(index)
        with ThreadPoolExecutor(threads, thread_name_prefix="load-weights") as pool:
            table = pool.submit(load.table)
            self._layers = list(pool.map(load.layer, range(self.spec.layers)))
            self._embedding, self._head = table.result()
        self._norm = load.norm("model.norm")
        self._frequencies = torch.tensor(self.spec.frequencies(), dtype=torch.float32, device=device)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, pages: Pages, pool: torch.Tensor) -> torch.Tensor:
        """Hidden states (rows, hidden) of ``tokens`` (rows,); their keys and values are written to ``pool``.

        ``pool`` is (layers, blocks, block_tokens, 2, kv_heads, head_dim).
        """
        hidden = functional.embedding(tokens, self._embedding).to(self.activations)
        cos, sin = (part.to(self.activations) for part in rotation(self._frequencies, positions))
        for layer, layer_pool in zip(self._layers, pool.unbind(), strict=True):
            hidden += self._attention(layer, hidden, cos, sin, layer_pool, pages)
            hidden += self._mlp(layer, hidden)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Next-token logits (rows, vocab), float32, of ``hidden`` (rows, hidden); there may be no row."""
        if not len(hidden):
            return torch.empty((0, self.spec.vocab), device=self.device)
        return self._head(self._ops.rms_norm(hidden, self._norm, self.spec.eps)).float()

    def _attention(
        self,
        layer: LlamaLayer,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        pool: torch.Tensor,
        pages: Pages,
    ) -> torch.Tensor:
        spec, ops = self.spec, self._ops
        qkv = layer.qkv(ops.rms_norm(hidden, layer.input_norm, spec.eps))
        heads = qkv.view(-1, spec.heads + 2 * spec.kv_heads, spec.head_dim)
        rotated = ops.rope(heads[:, : spec.heads + spec.kv_heads], cos, sin)
        pair = torch.stack((rotated[:, spec.heads :], heads[:, spec.heads + spec.kv_heads :]), dim=1)
        ops.store_kv(pool, pair, pages)
        return layer.out(ops.attention(rotated[:, : spec.heads], pool, pages).reshape(-1, spec.query_rows))

    def _mlp(self, layer: LlamaLayer, hidden: torch.Tensor) -> torch.Tensor:
        ops = self._ops
        return layer.down(ops.swiglu(layer.gate_up(ops.rms_norm(hidden, layer.mlp_norm, self.spec.eps))))


def rotation(frequencies: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines (rows, 1, head_dim), float32, in the form that ``kernels.reference.rope`` takes."""
    angles = torch.outer(positions.float(), frequencies).unsqueeze(1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


class _Loader:
    """Asks the source for each weight by name and shape and brings it to the device; used by several threads."""

    def __init__(
        self, source: WeightSource, ops: Ops, dtype: torch.dtype, device: torch.device, activations: torch.dtype
    ) -> None:
        self._source = source
        self._spec: LlamaSpec = source.spec
        self._ops = ops
        self._dtype = dtype
        self._device = device
        self._activations = activations

    def table(self) -> tuple[torch.Tensor, Linear]:
        """The embedding table and the output projection."""
        shape = (self._spec.vocab, self._spec.hidden)
        table = self._source.tensor("model.embed_tokens.weight", shape)
        head = table if self._spec.tied else self._source.tensor("lm_head.weight", shape)
        return table.to(self._device, self._dtype), self._make(head, None)

    def layer(self, index: int) -> LlamaLayer:
        spec, name = self._spec, f"model.layers.{index}."
        qkv = {"q_proj": spec.query_rows, "k_proj": spec.kv_rows, "v_proj": spec.kv_rows}
        gate_up = {"gate_proj": spec.intermediate, "up_proj": spec.intermediate}
        attention, mlp = name + "self_attn.", name + "mlp."
        return LlamaLayer(
            input_norm=self.layer_norm(index),
            qkv=self._linear(attention, qkv, spec.hidden, spec.attention_bias),
            out=self._linear(attention, {"o_proj": spec.hidden}, spec.query_rows, spec.attention_bias),
            mlp_norm=self.norm(name + "post_attention_layernorm"),
            gate_up=self._linear(mlp, gate_up, spec.hidden, spec.mlp_bias),
            down=self._linear(mlp, {"down_proj": spec.hidden}, spec.intermediate, spec.mlp_bias),
        )

    def layer_norm(self, index: int) -> torch.Tensor:
        """The first weight of a layer. Raises ModelFormatError if the source has no such layer."""
        return self.norm(f"model.layers.{index}.input_layernorm")

    def norm(self, name: str) -> torch.Tensor:
        weight = self._source.tensor(name + ".weight", (self._spec.hidden,))
        return weight.to(self._device, self._activations)

    def _linear(self, prefix: str, parts: dict[str, int], width: int, has_bias: bool) -> Linear:
        """One product out of several that read the same input."""
        get: Callable[[str, tuple[int, ...]], torch.Tensor] = self._source.tensor
        weight = torch.cat([get(f"{prefix}{part}.weight", (rows, width)) for part, rows in parts.items()])
        if not has_bias:
            return self._make(weight, None)
        return self._make(weight, torch.cat([get(f"{prefix}{part}.bias", (rows,)) for part, rows in parts.items()]))

    def _make(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        return self._ops.make_linear(weight, bias, self._dtype, self._device)
