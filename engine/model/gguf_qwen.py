"""Dense Qwens out of a GGUF file."""

from __future__ import annotations

from typing import Any

from energyopt.core.errors import ModelFormatError

from .family import Family
from .gguf_file import GgufFile
from .gguf_source import GgufTensors, entry, linear_scaling, vocabulary
from .qwen import QWEN2, QWEN3, QwenSpec
from .spec import RopeSpec

QWENS: dict[str, Family[Any]] = {"qwen2": QWEN2, "qwen3": QWEN3}
"""By the name of their architecture in a GGUF file."""


class GgufQwenSource(GgufTensors):
    """Satisfies ``WeightSource`` for GGUF files of an architecture among ``QWENS``; their heads are not reordered."""

    def __init__(self, file: GgufFile) -> None:
        super().__init__(file, None)
        self.spec = read_qwen_spec(file)
        self.family = QWENS[entry(file, "general.architecture", str)]


def read_qwen_spec(file: GgufFile) -> QwenSpec:
    """The model's numbers. Raises UnsupportedModelError or ModelFormatError naming the key."""
    kind = entry(file, "general.architecture", str)
    heads, hidden = entry(file, f"{kind}.attention.head_count", int), entry(file, f"{kind}.embedding_length", int)
    head_dim = entry(file, f"{kind}.attention.key_length", int, hidden // max(heads, 1))
    theta = entry(file, f"{kind}.rope.freq_base", float, 10000.0)
    spec = QwenSpec(
        name=entry(file, "general.name", str, file.path.stem),
        layers=entry(file, f"{kind}.block_count", int),
        hidden=hidden,
        intermediate=entry(file, f"{kind}.feed_forward_length", int),
        heads=heads,
        kv_heads=entry(file, f"{kind}.attention.head_count_kv", int, heads),
        head_dim=head_dim,
        vocab=vocabulary(file),
        context=entry(file, f"{kind}.context_length", int),
        eps=entry(file, f"{kind}.attention.layer_norm_rms_epsilon", float),
        rope=RopeSpec(head_dim, theta, linear_scaling(file, kind)),
        tied="output.weight" not in file.tensors,
        bias="blk.0.attn_q.bias" in file.tensors,
        out_bias="blk.0.attn_output.bias" in file.tensors,
        norms="blk.0.attn_q_norm.weight" in file.tensors,
    )
    if problem := spec.problems():
        raise ModelFormatError(f"{file.path}: {problem}.")
    return spec
