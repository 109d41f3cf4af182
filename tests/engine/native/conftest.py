"""A tiny quantised Llama in the native library, beside the twin of the same weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from energyopt.core.clock import FakeClock
from energyopt.core.config import EngineConfig, KvConfig
from energyopt.core.units import Bytes
from engine.models import open_source
from engine.native.loading import load_native
from engine.native.model import NativeModel
from engine.native.runner import NativeRunner
from kernels.cpu import twin
from kernels.cpu.blocks import quantize
from kernels.cpu.compiler import CompilerMissingError
from kernels.cpu.library import best_library

HIDDEN, INNER, HEADS, KV_HEADS, HEAD, LAYERS, VOCAB = 80, 112, 6, 2, 16, 2, 256
"""None of them whole groups of 32 or blocks of 16 by chance."""


def save(directory: Path, *, biases: bool = False, tied: bool = True) -> None:
    """A random Llama in Hugging Face's layout, with a byte-level tokenizer."""
    generator = torch.Generator().manual_seed(3)

    def random(*shape: int, scale: float = 0.2) -> torch.Tensor:
        return scale * torch.randn(*shape, generator=generator)

    weights = {"model.embed_tokens.weight": random(VOCAB, HIDDEN, scale=1.0), "model.norm.weight": 1 + random(HIDDEN)}
    if not tied:
        weights["lm_head.weight"] = random(VOCAB, HIDDEN)
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * HEAD, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name, shape in shapes.items():
            weights[f"{prefix}{name}.weight"] = random(*shape)
            if biases:
                weights[f"{prefix}{name}.bias"] = random(shape[0])
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{name}.weight"] = 1 + random(HIDDEN)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(weights, str(directory / "model.safetensors"))
    (directory / "config.json").write_text(_config(biases=biases, tied=tied))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))


def _config(*, biases: bool, tied: bool) -> str:
    flags = f'"attention_bias": {str(biases).lower()}, "mlp_bias": {str(biases).lower()}'
    return (
        f'{{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": {HIDDEN}, '
        f'"intermediate_size": {INNER}, "num_hidden_layers": {LAYERS}, "num_attention_heads": {HEADS}, '
        f'"num_key_value_heads": {KV_HEADS}, "head_dim": {HEAD}, "max_position_embeddings": 512, '
        f'"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": {VOCAB}, "eos_token_id": 2, '
        f'"tie_word_embeddings": {str(tied).lower()}, {flags}}}'
    )


@dataclass
class Tiny:
    """One directory, its configuration, and its twin."""

    config: EngineConfig
    twin: twin.TwinModel

    def runner(self, **changes: Any) -> NativeRunner:
        config = EngineConfig.model_validate({**self.config.model_dump(), **changes})
        opened, source = open_source(config)
        loaded = load_native(config, opened, source)
        assert loaded is not None
        return NativeRunner(loaded, loaded.model, config, FakeClock())


def twin_of(model: NativeModel, config: EngineConfig, bits: int) -> twin.TwinModel:
    """The same weights, rounded by the same function, as the twin takes them."""
    _, source = open_source(config)
    spec = model.spec

    def blocks(prefix: str, rows: dict[str, int], width: int) -> tuple[Any, torch.Tensor | None]:
        parts = [source.tensor(f"{prefix}{name}.weight", (count, width)) for name, count in rows.items()]
        bias = None
        if spec.attention_bias:
            bias = torch.cat([source.tensor(f"{prefix}{name}.bias", (count,)) for name, count in rows.items()])
        return quantize(torch.cat(parts), bits), bias

    def norm(name: str) -> torch.Tensor:
        return source.tensor(name + ".weight", (spec.hidden,))

    layers = []
    for index in range(spec.layers):
        name = f"model.layers.{index}."
        attention, mlp = name + "self_attn.", name + "mlp."
        qkv = blocks(attention, {"q_proj": HEADS * HEAD, "k_proj": KV_HEADS * HEAD, "v_proj": KV_HEADS * HEAD}, HIDDEN)
        out = blocks(attention, {"o_proj": HIDDEN}, HEADS * HEAD)
        gate_up = blocks(mlp, {"gate_proj": INNER, "up_proj": INNER}, HIDDEN)
        down = blocks(mlp, {"down_proj": HIDDEN}, INNER)
        norms = norm(name + "input_layernorm"), norm(name + "post_attention_layernorm")
        layers.append(twin.TwinLayer(*norms, *qkv, *out, *gate_up, *down))
    embedding = quantize(source.tensor("model.embed_tokens.weight", (VOCAB, HIDDEN)), bits)
    head = embedding if spec.tied else quantize(source.tensor("lm_head.weight", (VOCAB, HIDDEN)), bits)
    frequencies = torch.tensor(spec.rope.angles()[0], dtype=torch.float32)
    return twin.TwinModel(HEADS, KV_HEADS, spec.eps, frequencies, embedding, head, norm("model.norm"), layers)


@pytest.fixture(scope="session", autouse=True)
def _compiled() -> None:
    """Without a compiler there is nothing to test here; one that fails is a fault."""
    try:
        best_library()
    except CompilerMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def make_tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Tiny]:
    def make(bits: int = 8, **options: bool) -> Tiny:
        directory = tmp_path_factory.mktemp("tiny") / f"llama-{bits}"
        save(directory, **options)
        config = EngineConfig(
            model=str(directory),
            device="cpu",
            threads=2,
            quantization="int8" if bits == 8 else "int4",
            kv=KvConfig(block_tokens=16, memory_bytes=Bytes(2**21)),
        )
        opened, source = open_source(config)
        loaded = load_native(config, opened, source)
        assert loaded is not None
        made = Tiny(config, twin_of(loaded.model, config, bits))
        loaded.model.close()
        return made

    return make


@pytest.fixture(scope="session")
def tiny(make_tiny: Callable[..., Tiny]) -> Tiny:
    return make_tiny(8)
