"""A Llama whose weights live in the native library, under the numbers that a runner asks of any model."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from kernels.cpu.blocks import Blocks
from kernels.cpu.library import Shape
from kernels.cpu.program import Program

from ..model.source import WeightSource
from ..model.spec import LlamaSpec
from .weights import BlockSource, biases, stacked

MOST_HEAD_DIM = 512
"""Of attention.h."""


def unsupported(spec: LlamaSpec) -> str | None:
    """Why the native kernels cannot compute a model, None if they can."""
    if spec.head_dim % 16 or spec.head_dim > MOST_HEAD_DIM:
        return f"heads of {spec.head_dim} are not a multiple of 16 up to {MOST_HEAD_DIM}"
    return None


@dataclass(frozen=True, slots=True)
class _Part:
    """One matrix on its way in."""

    name: str
    layer: int
    blocks: Blocks
    bias: torch.Tensor | None


class NativeModel:
    """Weights in groups of 32 of four or eight bits; keys and values in bfloat16. ``close`` frees the weights.

    ``quantization`` names the format for people: "int8", "int4", or the GGUF file's own.
    """

    dtype = torch.bfloat16
    device = torch.device("cpu")

    def __init__(
        self,
        spec: LlamaSpec,
        source: WeightSource,
        blocks: BlockSource,
        library: ctypes.CDLL,
        threads: int,
        quantization: str,
    ) -> None:
        self.spec = spec
        self.quantization = quantization
        shape = Shape(
            spec.layers, spec.hidden, spec.intermediate, spec.heads, spec.kv_heads, spec.head_dim, spec.vocab, spec.eps
        )
        for index in range(spec.layers):  # a false number of layers must end here, not after as many allocations
            source.tensor(f"model.layers.{index}.input_layernorm.weight", (spec.hidden,))
        self.program = Program(library, shape, spec.rope.angles()[0], threads)
        try:
            self._load(_Reader(spec, source, blocks), threads)
        except BaseException:
            self.program.close()
            raise

    @property
    def variant(self) -> str:
        """The instructions that are used."""
        return self.program.variant

    def close(self) -> None:
        """Free the weights; idempotent."""
        self.program.close()

    def _load(self, reader: _Reader, threads: int) -> None:
        """Each thread packs what it read before it reads more: the weights are never in memory twice."""

        def bring(parts: Iterator[_Part]) -> None:
            for part in parts:
                self.program.matrix(part.name, part.layer, part.blocks, part.bias)

        with ThreadPoolExecutor(threads, thread_name_prefix="load-weights") as pool:
            tasks = [pool.submit(bring, reader.ends())]
            tasks += [pool.submit(bring, reader.layer(index)) for index in range(self.spec.layers)]
            try:
                for task in tasks:
                    task.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        if self.spec.tied:
            self.program.tie()
        for which, layer, weight in reader.norms():
            self.program.norm(which, layer, weight)


class _Reader:
    """Asks for each weight by name and shape; used by several threads."""

    def __init__(self, spec: LlamaSpec, source: WeightSource, blocks: BlockSource) -> None:
        self._spec = spec
        self._source = source
        self._blocks = blocks

    def ends(self) -> Iterator[_Part]:
        shape = (self._spec.vocab, self._spec.hidden)
        yield _Part("embedding", 0, self._blocks.matrix("model.embed_tokens.weight", shape), None)
        if not self._spec.tied:
            yield _Part("head", 0, self._blocks.matrix("lm_head.weight", shape), None)

    def layer(self, index: int) -> Iterator[_Part]:
        spec = self._spec
        name = f"model.layers.{index}."
        attention, mlp = name + "self_attn.", name + "mlp."
        qkv = {"q_proj": spec.query_rows, "k_proj": spec.kv_rows, "v_proj": spec.kv_rows}
        gate_up = {"gate_proj": spec.intermediate, "up_proj": spec.intermediate}
        yield self._part("qkv", index, attention, qkv, spec.hidden, spec.attention_bias)
        yield self._part("out", index, attention, {"o_proj": spec.hidden}, spec.query_rows, spec.attention_bias)
        yield self._part("gate_up", index, mlp, gate_up, spec.hidden, spec.mlp_bias)
        yield self._part("down", index, mlp, {"down_proj": spec.hidden}, spec.intermediate, spec.mlp_bias)

    def norms(self) -> Iterator[tuple[str, int, torch.Tensor]]:
        for index in range(self._spec.layers):
            name = f"model.layers.{index}."
            yield "input", index, self._norm(name + "input_layernorm")
            yield "mlp", index, self._norm(name + "post_attention_layernorm")
        yield "final", 0, self._norm("model.norm")

    def _norm(self, name: str) -> torch.Tensor:
        return self._source.tensor(name + ".weight", (self._spec.hidden,))

    def _part(self, part: str, layer: int, prefix: str, rows: dict[str, int], width: int, has_bias: bool) -> _Part:
        blocks = stacked([self._blocks.matrix(f"{prefix}{one}.weight", (count, width)) for one, count in rows.items()])
        own = {prefix + one: count for one, count in rows.items()}
        return _Part(part, layer, blocks, biases(self._source, own) if has_bias else None)
