"""Safetensors files that lie are refused in words, whatever they claim, and so are tensors of a wrong shape or type."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from energyopt.core.config import EngineConfig
from energyopt.core.errors import ModelError, ModelFormatError, UnsupportedModelError
from engine.models import load_model

NAME = "model.layers.1.mlp.up_proj.weight"
Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def directory(tmp_path: Path, tiny_directory: Path) -> Path:
    return shutil.copytree(tiny_directory, tmp_path / "model")


def load(directory: Path, config: EngineConfig) -> None:
    load_model(config.model_copy(update={"model": str(directory)}))


def rewrite(path: Path, change: Change) -> None:
    """The header with ``change`` made to it, over the same bytes."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    change(header)
    made = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(made)) + made + content[8 + size :])


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**63, 2**64 - 1, 10**8 + 1])
def test_a_header_of_any_claimed_length(directory: Path, tiny_config: EngineConfig, length: int) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])
    with pytest.raises(ModelFormatError, match=r"model\.safetensors is truncated or not a safetensors file"):
        load(directory, tiny_config)


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header[NAME].update(data_offsets=[0, 2**40]),
        lambda header: header[NAME].update(data_offsets=[8, 4]),
        lambda header: header[NAME].update(data_offsets=[-8, 0]),
        lambda header: header[NAME].update(shape=[2**62, 2**62]),
        lambda header: header[NAME].update(shape=[1]),
        lambda header: header[NAME].update(dtype="F128"),
        lambda header: header[NAME].update(dtype=3),
        lambda header: header.update({NAME: []}),
        lambda header: header.update({NAME + "2": header[NAME]}),
    ],
    ids=["beyond", "backwards", "negative", "overflow", "size", "type", "no type", "no entry", "shared bytes"],
)
def test_a_header_that_contradicts_itself(directory: Path, tiny_config: EngineConfig, change: Change) -> None:
    rewrite(directory / "model.safetensors", change)
    with pytest.raises(ModelFormatError, match=r"model\.safetensors"):
        load(directory, tiny_config)


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (None, ModelFormatError, "has no tensor"),
        (torch.zeros(3, 64), ModelFormatError, r"has shape \(3, 64\), expected \(112, 64\)"),
        (torch.zeros(112, 64, dtype=torch.int32), UnsupportedModelError, "is I32; supported are floats"),
        (torch.zeros(112, 64, dtype=torch.float8_e4m3fn), UnsupportedModelError, "is F8_E4M3; supported are floats"),
        (torch.zeros(112, 64, dtype=torch.float64), UnsupportedModelError, "is F64; supported are floats"),
    ],
    ids=["missing", "misshapen", "integers", "eight bits", "doubles"],
)
def test_a_tensor_that_is_not_what_it_must_be(
    directory: Path, tiny_config: EngineConfig, value: torch.Tensor | None, error: type[ModelError], words: str
) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    del tensors[NAME]
    save_file(tensors | ({} if value is None else {NAME: value}), path)
    with pytest.raises(error, match=words) as caught:
        load(directory, tiny_config)
    assert NAME in str(caught.value)


def test_weights_in_a_format_that_the_family_does_not_read(directory: Path, tiny_config: EngineConfig) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(UnsupportedModelError, match=r"quantized by 'gptq' are not supported.*: none\."):
        load(directory, tiny_config)
