"""Qwens out of GGUF files: the logits of transformers, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from tokenizers import pre_tokenizers

from energyopt.core.config import EngineConfig, KvConfig
from energyopt.core.errors import ModelError, ModelFormatError, UnsupportedModelError
from energyopt.core.units import Bytes
from engine.models import load_model

NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "model.layers.": "blk.", "model.embed_tokens": "token_embd",
    "model.norm": "output_norm", "lm_head": "output",
}  # fmt: skip
VALUES: dict[str, Any] = {
    "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.2, "pad_token_id": 0,
}  # fmt: skip
FAMILIES = {"qwen2": ("Qwen2Config", "Qwen2ForCausalLM"), "qwen3": ("Qwen3Config", "Qwen3ForCausalLM")}


def write(path: Path, kind: str, model: Any, **changes: Any) -> None:
    """Transformers' ``model`` as a float32 GGUF file with a byte-level tokenizer."""
    config, writer = model.config, gguf.GGUFWriter(path, kind)
    numbers = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": getattr(config, "head_dim", config.hidden_size // config.num_attention_heads),
        **changes,
    }
    for key, value in numbers.items():
        (writer.add_string if isinstance(value, str) else writer.add_uint32)(f"{kind}.{key}", value)
    writer.add_float32(f"{kind}.attention.layer_norm_rms_epsilon", config.rms_norm_eps)
    writer.add_float32(f"{kind}.rope.freq_base", config.rope_parameters["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*sorted(pre_tokenizers.ByteLevel.alphabet())[:-1], "he"])
    writer.add_token_merges(["h e"])
    for name, value in model.named_parameters():
        for own, other in NAMES.items():
            name = name.replace(own, other)
        writer.add_tensor(name, value.detach().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module", params=FAMILIES)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, family_saver: Callable[..., Any]
) -> tuple[str, Any]:
    return request.param, family_saver(tmp_path_factory.mktemp("hf"), *FAMILIES[request.param], VALUES)


def settings(path: Path) -> EngineConfig:
    kv = KvConfig(block_tokens=4, memory_bytes=Bytes(2**20))
    return EngineConfig(model=str(path), dtype="float32", device="cpu", threads=1, kv=kv)


def test_the_logits_of_transformers(tmp_path: Path, model: tuple[str, Any], record: Callable[..., Any]) -> None:
    kind, oracle = model
    write(tmp_path / "tiny.gguf", kind, oracle)
    requests, rows = record(settings(tmp_path / "tiny.gguf"), [list(range(3, 40)), [7, 8]], 3)
    for request in requests:
        with torch.inference_mode():
            wanted = oracle(torch.tensor([[*request.prompt, *request.output]])).logits[0]
        for count in range(len(request.prompt), request.num_tokens):
            assert (rows[request.id, count] - wanted[count - 1]).abs().max() <= 1e-4


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"rope.scaling.type": "yarn"}, UnsupportedModelError, "scales rope by 'yarn'"),
        ({"attention.head_count_kv": 3}, ModelFormatError, "not a multiple of 3"),
        ({"embedding_length": 0}, ModelFormatError, "hidden 0 is below 1"),
        ({"feed_forward_length": 96}, ModelFormatError, "'blk.0.ffn_gate.weight' has shape"),
        ({"block_count": 2**31}, ModelFormatError, "layers 2147483648 is above 10000"),
    ],
    ids=str,
)
def test_a_file_that_does_not_fit_is_named(
    tmp_path: Path, model: tuple[str, Any], changes: dict[str, Any], error: type[ModelError], words: str
) -> None:
    write(tmp_path / "bad.gguf", *model, **changes)
    with pytest.raises(error, match=words) as caught:
        load_model(settings(tmp_path / "bad.gguf"))
    assert "bad.gguf" in str(caught.value)
