"""Hugging Face directories: what is refused, and in which words."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from energyopt.core.config import EngineConfig
from energyopt.core.errors import ModelError, ModelFormatError, UnsupportedModelError
from engine.models import load_model


@pytest.fixture
def directory(tmp_path: Path, tiny_directory: Path) -> Path:
    return shutil.copytree(tiny_directory, tmp_path / "model")


def load(directory: Path, config: EngineConfig) -> None:
    load_model(config.model_copy(update={"model": str(directory)}))


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            UnsupportedModelError,
            r"GPT2LMHeadModel.*supported are LlamaForCausalLM",
        ),
        ({"architectures": None, "model_type": "x"}, UnsupportedModelError, r"model_type 'x'; supported are Llama"),
        ({"hidden_act": "gelu"}, UnsupportedModelError, "'gelu'"),
        ({"hidden_size": "64"}, ModelFormatError, "hidden_size = '64'"),
        ({"hidden_size": None}, ModelFormatError, "hidden_size = None"),
        ({"num_hidden_layers": 3}, ModelFormatError, r"no tensor 'model\.layers\.2\."),
        ({"num_key_value_heads": 3}, ModelFormatError, "not a multiple of 3"),
        ({"num_attention_heads": 0}, ModelFormatError, "below 1"),
        (
            {"intermediate_size": 100},
            ModelFormatError,
            r"gate_proj\.weight' has shape \(112, 64\), expected \(100, 64\)",
        ),
        (
            {"rope_parameters": {"rope_type": "longrope"}},
            UnsupportedModelError,
            "'longrope'.*linear, llama3 and yarn are",
        ),
        ({"num_hidden_layers": 10_001}, ModelFormatError, "must be between 1 and 10000"),
        ({"head_dim": 2**17}, ModelFormatError, "head_dim 131072 is above 65536"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, ModelFormatError, "factor = None"),
        ({"rope_parameters": []}, ModelFormatError, r"rope_parameters = \[\] is not"),
        ({"rms_norm_eps": -1.0}, ModelFormatError, "must be above 0"),
    ],
    ids=str,
)
def test_a_config_that_is_wrong_is_named(
    directory: Path, tiny_config: EngineConfig, changes: dict[str, Any], error: type[ModelError], words: str
) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(error, match=words) as caught:
        load(directory, tiny_config)
    assert str(directory) in str(caught.value)


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(directory: Path, tiny_config: EngineConfig, missing: str) -> None:
    (directory / missing).unlink()
    with pytest.raises(ModelFormatError, match=missing.replace(".", r"\.")):
        load(directory, tiny_config)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_truncated_weights_are_named(directory: Path, tiny_config: EngineConfig, keep: int) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelFormatError, match=r"model\.safetensors"):
        load(directory, tiny_config)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "sub/x.safetensors", "..", "", "a\\b", "x\0y"])
def test_an_index_does_not_leave_its_directory(directory: Path, tiny_config: EngineConfig, name: str) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    with pytest.raises(ModelFormatError, match="only files inside the directory"):
        load(directory, tiny_config)


@pytest.mark.parametrize("content", ["{}", '{"weight_map": [1]}', '{"weight_map": {"a": 3}}', "[", "[[[[" * 50000])
def test_an_index_that_is_wrong_is_named(directory: Path, tiny_config: EngineConfig, content: str) -> None:
    (directory / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelFormatError, match=r"index\.json"):
        load(directory, tiny_config)


def test_a_shard_that_is_missing_is_named(directory: Path, tiny_config: EngineConfig) -> None:
    with safe_open(directory / "model.safetensors", framework="pt") as file:
        places = dict.fromkeys(file.keys(), "model.safetensors")
    places["model.layers.1.mlp.up_proj.weight"] = "model-00001-of-00002.safetensors"
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    with pytest.raises(ModelFormatError, match=r"model-00001-of-00002\.safetensors"):
        load(directory, tiny_config)
