"""Llama weights and shape out of a GGUF file, under Hugging Face names and in Hugging Face layout."""

from __future__ import annotations

import math
import re
from typing import Any, TypeVar

import torch

from energyopt.core.errors import ModelFormatError, UnsupportedModelError
from kernels.rope_scaling import Linear, Plain, Scaling

from ..files import shown
from .family import Family
from .gguf_file import GgufFile
from .llama import LLAMA
from .source import WHOLE, Part
from .spec import MOST_HEAD_DIM, Factors, LlamaSpec, RopeSpec

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
T = TypeVar("T", int, float, str)


class GgufTensors:
    """The tensors of a GGUF file under Hugging Face names. ``head_dim`` is that of heads whose rows the file has in
    another order (None: it has them as they are)."""

    def __init__(self, file: GgufFile, head_dim: int | None) -> None:
        self.file = file
        self._head_dim = head_dim

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and gguf_name(name) in self.file.tensors

    def packed(self, name: str, shape: tuple[int, ...], part: Part = WHOLE) -> torch.Tensor:
        """No weight is asked for in this way: those of a GGUF file are dequantized as they are read."""
        raise ModelFormatError(f"{self.file.path} has no tensor {name!r} of bytes.")

    def tensor(self, name: str, shape: tuple[int, ...], part: Part = WHOLE) -> torch.Tensor:
        """Whole rows of ``part`` are dequantized, and its columns cut from them: rows are what the format divides."""
        own = gguf_name(name)
        info = self.file.tensors.get(own)
        if info is not None and info.shape != shape:
            raise ModelFormatError(f"{self.file.path}: tensor {own!r} has shape {info.shape}, expected {shape}.")
        rows = part[0] if part else slice(None)
        values = torch.from_numpy(self.file.load(own, rows))
        if self._head_dim is not None and (".attn_q." in own or ".attn_k." in own):
            values = unpermute(values, len(values) // self._head_dim)
        return values[(slice(None), *part[1:])] if len(part) > 1 else values


class GgufSource(GgufTensors):
    """Satisfies ``WeightSource`` for GGUF files of architecture ``llama``."""

    def __init__(self, file: GgufFile) -> None:
        self.spec = read_spec(file)
        self.family: Family[Any] = LLAMA
        super().__init__(file, self.spec.head_dim)


def gguf_name(name: str) -> str:
    """``model.layers.3.mlp.up_proj.weight`` -> ``blk.3.ffn_up.weight``."""
    match = _LAYER.fullmatch(name)
    return f"blk.{match[1]}.{_PARTS[match[2]]}.{match[3]}" if match else _TOP[name]


def unpermute(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo the row order GGUF gives query and key projections.

    The file stores each head so that rotated pairs are neighbours; our rotation, like Hugging Face's, pairs row i with
    row i + head_dim/2. Works on weights (rows, in) and on biases (rows,).
    """
    split = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return split.transpose(1, 2).reshape(rows.shape)


def read_spec(file: GgufFile) -> LlamaSpec:
    """The model's numbers. Raises UnsupportedModelError or ModelFormatError naming the key."""
    architecture = entry(file, "general.architecture", str)
    experts = file.metadata.get("llama.expert_count", 0)
    if architecture != "llama" or experts:
        found = f"{shown(architecture)}{' with experts' if experts else ''}"
        raise UnsupportedModelError(
            f"{file.path} has the architecture {found}; supported are 'llama' (dense), 'qwen2' and 'qwen3'."
        )
    heads = entry(file, "llama.attention.head_count", int)
    hidden = entry(file, "llama.embedding_length", int)
    head_dim = entry(file, "llama.attention.key_length", int, hidden // max(heads, 1))
    spec = LlamaSpec(
        name=entry(file, "general.name", str, file.path.stem),
        layers=entry(file, "llama.block_count", int),
        hidden=hidden,
        intermediate=entry(file, "llama.feed_forward_length", int),
        heads=heads,
        kv_heads=entry(file, "llama.attention.head_count_kv", int, heads),
        head_dim=head_dim,
        vocab=vocabulary(file),
        context=entry(file, "llama.context_length", int),
        eps=entry(file, "llama.attention.layer_norm_rms_epsilon", float),
        rope=RopeSpec(head_dim, entry(file, "llama.rope.freq_base", float, 10000.0), _scaling(file)),
        tied="output.weight" not in file.tensors,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        mlp_bias="blk.0.ffn_up.bias" in file.tensors,
    )
    _refuse_partial_rotation(file, spec)
    if problem := spec.problems():
        raise ModelFormatError(f"{file.path}: {problem}.")
    return spec


def vocabulary(file: GgufFile) -> int:
    """Rows of the embedding. Raises ModelFormatError without one."""
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise ModelFormatError(f"{file.path} has no tensor 'token_embd.weight' of two dimensions.")
    return table.shape[0]


def _scaling(file: GgufFile) -> Scaling | Factors:
    table = file.tensors.get("rope_freqs.weight")
    if table is None:
        return linear_scaling(file, "llama")
    if math.prod(table.shape) > MOST_HEAD_DIM:
        raise ModelFormatError(f"{file.path}: 'rope_freqs.weight' of shape {table.shape} is longer than any head.")
    return Factors(tuple(file.load("rope_freqs.weight").ravel().tolist()))


def linear_scaling(file: GgufFile, kind: str) -> Scaling:
    """How the metadata of architecture ``kind`` says that positions are scaled: not, or all alike."""
    named = entry(file, f"{kind}.rope.scaling.type", str, "none")
    if named == "none":
        return Plain()
    if named != "linear":
        raise UnsupportedModelError(
            f"{file.path} scales rope by {shown(named)}; supported are none, linear and, for llama, rope_freqs."
        )
    return Linear(entry(file, f"{kind}.rope.scaling.factor", float))


def _refuse_partial_rotation(file: GgufFile, spec: LlamaSpec) -> None:
    rotated = entry(file, "llama.rope.dimension_count", int, spec.head_dim)
    values = entry(file, "llama.attention.value_length", int, spec.head_dim)
    if rotated != spec.head_dim or values != spec.head_dim:
        raise UnsupportedModelError(
            f"{file.path} rotates {rotated} of {spec.head_dim} dimensions and has values of {values}; "
            "supported are heads that are rotated whole and equal in length."
        )


def entry(file: GgufFile, key: str, kind: type[T], default: T | None = None) -> T:
    """A metadata value of a given type. Raises ModelFormatError if it is absent or of another."""
    value = file.metadata.get(key, default)
    if value is None:
        raise ModelFormatError(f"{file.path} lacks the metadata key {key!r}.")
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return kind(value)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ModelFormatError(f"{file.path}: {key} = {shown(value)} is not of type {kind.__name__}.")
    return value
