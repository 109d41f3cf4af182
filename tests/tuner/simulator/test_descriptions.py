"""GPUs, models and constants as data: complete, sourced, and in agreement with the published sizes."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from energyopt.core.errors import ConfigError, NotFoundError
from tuner.simulator import datafiles
from tuner.simulator.constants import load_constants
from tuner.simulator.hardware import load_gpu, parse_gpu
from tuner.simulator.models import from_hf_config, load_model_spec

ASKED_FOR = ("a100", "h100", "h200", "b200", "gb200", "b300", "gb300", "mi300x", "mi325x", "mi355x")


@pytest.mark.parametrize("name", datafiles.names("gpus"))
def test_every_gpu_loads_and_says_what_nobody_checked(name: str) -> None:
    gpu = load_gpu(name)
    assert gpu.name == name
    assert gpu.value("idle") < gpu.value("cap_min") <= gpu.value("tdp")
    assert gpu.value("clock_min") < gpu.value("clock_max")
    assert all(gpu.facts[fact].kind not in ("spec", "measured") for fact in gpu.unverified)


def test_the_gpus_that_a_planner_is_asked_about_are_there() -> None:
    assert set(ASKED_FOR) <= set(datafiles.names("gpus"))


@pytest.mark.parametrize("name", datafiles.names("models"))
def test_computed_sizes_agree_with_the_published_ones(name: str) -> None:
    document = datafiles.load("models", name)
    spec = load_model_spec(name)
    if document["published_total"] is not None and not spec.approximate:
        assert spec.total_params == pytest.approx(document["published_total"], rel=0.015)
        assert spec.active_params <= document["published_active"] * 1.17  # some publish without embeddings
    assert document["source"]


@pytest.mark.parametrize(
    ("name", "stem", "precision"),
    [
        ("Qwen/Qwen3-235B-A22B-Thinking-2507-FP8", "Qwen/Qwen3-235B-A22B", "fp8"),
        ("meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Meta-Llama-3.1-70B", "bf16"),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek-ai/DeepSeek-V3", "fp8"),
        ("openai/gpt-oss-120b", "openai/gpt-oss-120b", "mxfp4"),
    ],
)
def test_a_variant_finds_its_shape_and_keeps_its_precision(name: str, stem: str, precision: str) -> None:
    spec = load_model_spec(name)
    assert (spec.name, spec.precision) == (stem, precision)


def test_unknown_names_are_refused_with_what_there_is() -> None:
    with pytest.raises(NotFoundError, match=r"llama-3\.1-8b"):
        load_model_spec("gpt-2")
    with pytest.raises(NotFoundError, match="h100"):
        load_gpu("voodoo2")


def llama_config() -> dict[str, Any]:
    return {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
    }


def test_a_hugging_face_config_gives_the_same_shape_as_our_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(llama_config()), encoding="utf-8")
    own, theirs = load_model_spec("llama-3.1-8b"), load_model_spec(str(path))
    assert theirs.model_dump(exclude={"name"}) == own.model_dump(exclude={"name"})


def test_a_config_with_experts_and_latent_attention_is_read() -> None:
    ours = load_model_spec("deepseek-v3")
    config = {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 3,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "vocab_size": 129280,
        "max_position_embeddings": 163840,
        "quantization_config": {"quant_method": "fp8"},
    }
    spec = from_hf_config(config)
    assert spec.total_params == ours.total_params
    assert spec.kv_bytes_per_token() == ours.kv_bytes_per_token() == 70272
    assert spec.precision == "fp8"


@pytest.mark.parametrize("missing", ["num_hidden_layers", "vocab_size", "max_position_embeddings"])
def test_a_config_without_a_size_is_refused_by_name(missing: str) -> None:
    config = {key: value for key, value in llama_config().items() if key != missing}
    with pytest.raises(ConfigError, match=missing):
        from_hf_config(config)


def test_a_users_gpu_is_one_file_and_a_wrong_one_is_told_what_is_wrong(tmp_path: Path) -> None:
    document: dict[str, Any] = copy.deepcopy(dict(datafiles.load("gpus", "h200")))
    document["name"] = "mine"
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    gpu = load_gpu(str(path))
    constants = load_constants(gpu, moe=False)
    assert (constants.gpu, constants.origin) == ("mine", "prior")
    document["facts"]["tdp"]["unit"] = "kW"
    with pytest.raises(ConfigError, match="'tdp' is in 'kW'"):
        parse_gpu(document)
    del document["facts"]["tdp"]
    with pytest.raises(ConfigError, match="'tdp' is missing"):
        parse_gpu(document)


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 5000])
def test_a_file_that_is_no_description_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match="not"):
        load_gpu(str(path))


def test_constants_that_were_not_measured_say_so() -> None:
    measured, carried = (load_constants(load_gpu(name), moe=True) for name in ("b200", "mi355x"))
    assert measured.origin == "fitted"
    assert carried.origin == "prior"
    assert carried.error > measured.error
    assert "nothing was measured on mi355x" in carried.provenance
