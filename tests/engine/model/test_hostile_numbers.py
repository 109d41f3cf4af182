"""Numbers out of files that lie: every value of every key ends in a model's numbers or in a typed error, at once."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from energyopt.core.config import EngineConfig
from energyopt.core.errors import ModelError, ModelFormatError
from engine.files import shown
from engine.model.families import FAMILIES, family_of, fp8_blocks, read_spec
from engine.model.family import Family
from engine.model.gguf_file import GgufFile
from engine.model.gguf_qwen import read_qwen_spec
from engine.model.gguf_source import read_spec as read_llama_spec
from engine.model.hf_config import HfConfig
from engine.model.layers.rotary import Rotary
from engine.model.spec import MOST_LAYERS, DecoderSpec, RopeSpec
from engine.models import open_source
from engine.tokenizer import from_gguf

HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 1, 3, 2**31, 2**40 + 1, 2**63, 10**400, -1e308, 1e308, 1e-320, 0.0, math.nan, math.inf,
    "x", "x" * 1000, [], [1], [[1]], [2**70], ["x"], {}, {"rope_type": "yarn"}, {"rope_type": []},
)  # fmt: skip
ROPE = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32,
    "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.5, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "partial_rotary_factor": 0.5, "truncate": True, "attention_factor": None,
}  # fmt: skip
LINEAR = {"num_heads": 2, "head_dim": 16, "short_conv_kernel_size": 4, "full_attn_layers": [2]}
NUMBERS: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 64, "vocab_size": 128, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "rope_theta": 1e4, "rope_parameters": ROPE, "tie_word_embeddings": False, "attention_bias": False,
    "mlp_bias": False, "use_sliding_window": False, "num_experts": 4, "num_local_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": False, "decoder_sparse_step": 1,
    "mlp_only_layers": [0], "sliding_window": 8, "sliding_window_pattern": 2, "query_pre_attn_scalar": 16,
    "swiglu_alpha": 1.7, "swiglu_limit": 7.0, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 2,
    "topk_group": 1, "topk_method": "noaux_tc", "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "kv_lora_rank": 32, "q_lora_rank": 32, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5,
    "linear_attn_config": LINEAR, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "shared_expert_intermediate_size": 32,
    "full_attention_interval": 2, "model_max_length": 64, "quantization_config": {"weight_block_size": [128, 128]},
}  # fmt: skip


def config(family: Family[Any], values: dict[str, Any]) -> HfConfig:
    return HfConfig(Path("model/config.json"), {"architectures": [family.architectures[0]], **values})


def usual(family: Family[Any]) -> dict[str, Any]:
    kinds = {"rope_type": "llama3"} if family.architectures[0].startswith(("Llama", "Qwen", "Gemma")) else {}
    method = {"topk_method": "greedy"} if "V2" in family.architectures[0] else {}
    return {**NUMBERS, **method, "rope_parameters": {**ROPE, **kinds}}


def changed(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One value at a time, on every level."""
    for key, value in values.items():
        for other in HOSTILE:
            yield {**values, key: other}
        if isinstance(value, dict):
            for inner in changed(value):
                yield {**values, key: inner}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.architectures[0])
def test_every_value_of_every_key(family: Family[Any]) -> None:
    """Each family takes its share of the values: most keys are read by the same lines for all of them."""
    spec = read_spec(config(family, usual(family)), family, True)
    assert spec.problems() is None
    refused, shares = 0, 5
    for values in islice(changed(usual(family)), FAMILIES.index(family) % shares, None, shares):
        found = config(family, values)

        def read(found: HfConfig = found) -> DecoderSpec:
            assert family_of(found) is family
            fp8_blocks(found)
            return read_spec(found, family, True)

        refused += not used(read)
    assert refused > 50


def used(read: Callable[[], DecoderSpec]) -> bool:
    """Whether numbers were read rather than refused, in a message of bounded length."""
    try:
        use(read())
    except ModelError as error:
        if len(str(error)) > 600:
            raise AssertionError("the message repeats too much") from error
        return False
    return True


def use(spec: DecoderSpec) -> None:
    """What is made of the numbers before any tensor is read."""
    assert spec.layers <= MOST_LAYERS
    for one in fields(spec):
        value = getattr(spec, one.name)
        if isinstance(value, RopeSpec):
            frequencies, stretch = value.angles()
            assert len(frequencies) == value.width // 2
            assert math.isfinite(stretch)
            Rotary(frequencies, torch.device("cpu"), torch.float32, stretch)


def gguf_like(metadata: dict[str, Any]) -> GgufFile:
    """What the readers see of a file."""
    table = SimpleNamespace(shape=(128, 64))
    return cast(GgufFile, SimpleNamespace(path=Path("x.gguf"), metadata=metadata, tensors={"token_embd.weight": table}))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_every_value_of_every_gguf_key(kind: str) -> None:
    numbers = {
        "block_count": 2, "embedding_length": 64, "feed_forward_length": 64, "attention.head_count": 4,
        "attention.head_count_kv": 2, "attention.key_length": 16, "attention.value_length": 16, "context_length": 64,
        "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e4, "rope.scaling.type": "linear",
        "rope.scaling.factor": 2.0, "rope.dimension_count": 16, "expert_count": 0,
    }  # fmt: skip
    values: dict[str, Any] = {f"{kind}.{key}": value for key, value in numbers.items()}
    values |= {"general.architecture": kind, "general.name": "n"}
    read = read_llama_spec if kind == "llama" else read_qwen_spec
    assert read(gguf_like(values)).problems() is None
    for other in changed(values):
        if 10**400 in other.values() or (kind != "llama" and other["general.architecture"] != kind):
            continue  # a file's whole numbers have 64 bits, and the Qwens' reader is chosen by the architecture
        used(partial(read, gguf_like(other)))


def test_every_value_of_a_gguf_tokenizer() -> None:
    values = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": ["a", "b", "ab"],
        "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.token_type": [1, 3, 4], "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.eot_token_id": 2,
    }  # fmt: skip
    assert from_gguf(values, Path("x.gguf")).eos_ids == {1, 2}
    for other in changed(values):
        with suppress(ModelError):
            from_gguf(other, Path("x.gguf"))


def test_a_factor_of_zero_is_refused_wherever_it_stands() -> None:
    llama = FAMILIES[0]
    rope = {"rope_type": "linear", "rope_theta": 1e4, "factor": 0}
    with pytest.raises(ModelFormatError, match=r"the rope factor 0\.0 must be above 0"):
        read_spec(config(llama, {**NUMBERS, "rope_parameters": rope}), llama, True)


@pytest.mark.parametrize("vocabulary", [256, 250])
def test_ids_beyond_the_embeddings_are_none_of_the_tokenizers(
    tmp_path: Path, tiny_directory: Path, tiny_config: EngineConfig, vocabulary: int
) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((tiny_directory / name).read_bytes())
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "vocab_size": vocabulary, "eos_token_id": [3, 999]}))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<image>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    opened, _ = open_source(tiny_config.model_copy(update={"model": str(tmp_path)}))
    assert opened.spec.vocab == opened.tokenizer.vocab_size == vocabulary
    assert opened.tokenizer.eos_ids == {3}
    assert opened.tokenizer.special_ids == set()
    assert opened.tokenizer.encode("<image>") == [256], "which check_request then refuses"


def test_a_value_is_repeated_by_its_beginning() -> None:
    assert shown("abc") == "'abc'"
    for value in ("x" * 10**6, ["y" * 10**6] * 1000, {"k": "z" * 10**6}, 10**4000):
        assert len(shown(value)) < 600
