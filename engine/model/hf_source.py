"""Llama weights and shape out of a Hugging Face directory: ``config.json`` and safetensors files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from energyopt.core.errors import ModelFormatError, UnsupportedModelError

from ..files import inside, read_json
from .source import WHOLE, Part
from .spec import LlamaSpec, RopeScaling

_ARCHITECTURE = "LlamaForCausalLM"
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class HfSource:
    """Satisfies ``WeightSource`` for a directory with one ``model.safetensors`` or shards and their index."""

    def __init__(self, directory: Path) -> None:
        self._files = _locate(directory)
        self._directory = directory
        self.spec = read_spec(directory, "lm_head.weight" in self._files)

    def tensor(self, name: str, shape: tuple[int, ...], part: Part = WHOLE) -> torch.Tensor:
        path = self._files.get(name)
        if path is None:
            raise ModelFormatError(f"{self._directory} has no tensor {name!r}.")
        try:
            with safe_open(path, framework="pt") as file:
                lazy = file.get_slice(name)
                if (found := tuple(lazy.get_shape())) != shape:
                    raise ModelFormatError(f"{path}: tensor {name!r} has shape {found}, expected {shape}.")
                value: torch.Tensor = lazy[part] if part else file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ModelFormatError(f"{path}: tensor {name!r} cannot be read: {error}.") from error
        if value.dtype not in _FLOATS:
            raise UnsupportedModelError(
                f"{path}: tensor {name!r} is {value.dtype}; supported are floats of 2 or 4 bytes."
            )
        return value


def _locate(directory: Path) -> dict[str, Path]:
    """Which file holds each tensor."""
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        weights = read_json(index).get("weight_map")
        if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights.values()):
            raise ModelFormatError(f"{index} has no weight_map from tensor names to file names.")
        return {tensor: inside(directory, name) for tensor, name in weights.items()}
    path = directory / "model.safetensors"
    if not path.is_file():
        raise ModelFormatError(f"{directory} has neither model.safetensors nor model.safetensors.index.json.")
    try:
        with safe_open(path, framework="pt") as file:
            return dict.fromkeys(file.keys(), path)
    except (OSError, SafetensorError) as error:
        raise ModelFormatError(f"{path} is truncated or not a safetensors file: {error}.") from error


def read_spec(directory: Path, has_head: bool) -> LlamaSpec:
    """The model's numbers out of ``config.json``."""
    config = _Config(directory / "config.json")
    architectures = config.get("architectures")
    if architectures != [_ARCHITECTURE]:
        raise UnsupportedModelError(
            f"{config.path} has the architectures {architectures}; supported is {_ARCHITECTURE}."
        )
    if config.get("hidden_act", "silu") != "silu":
        raise UnsupportedModelError(
            f"{config.path}: hidden_act {config.get('hidden_act')!r} is not supported; silu is."
        )
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    spec = LlamaSpec(
        name=directory.resolve().name,
        layers=config.whole("num_hidden_layers"),
        hidden=hidden,
        intermediate=config.whole("intermediate_size"),
        heads=heads,
        kv_heads=config.whole("num_key_value_heads", heads),
        head_dim=config.whole("head_dim", hidden // max(heads, 1)),
        vocab=config.whole("vocab_size"),
        context=config.whole("max_position_embeddings", 2048),
        eps=config.number("rms_norm_eps", 1e-6),
        rope_theta=_theta(config),
        rope_scaling=_scaling(config),
        tied=config.get("tie_word_embeddings", False) is True or not has_head,
        attention_bias=config.get("attention_bias", False) is True,
        mlp_bias=config.get("mlp_bias", False) is True,
    )
    if problem := spec.problems():
        raise ModelFormatError(f"{config.path}: {problem}.")
    return spec


class _Config:
    """``config.json`` with typed access; null counts as absent."""

    def __init__(self, path: Path, values: Mapping[str, object] | None = None) -> None:
        if values is None and not path.is_file():
            raise ModelFormatError(f"{path.parent} has no config.json.")
        self.path = path
        self._values = read_json(path) if values is None else values

    def get(self, key: str, default: object = None) -> object:
        value = self._values.get(key)
        return default if value is None else value

    def whole(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ModelFormatError(f"{self.path}: {key} = {value!r} is not a whole number.")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise ModelFormatError(f"{self.path}: {key} = {value!r} is not a number.")
        return float(value)

    def rope(self) -> _Config:
        """``rope_parameters`` (transformers 5) or ``rope_scaling`` (before)."""
        found = self.get("rope_parameters", self.get("rope_scaling", {}))
        if not isinstance(found, dict):
            raise ModelFormatError(f"{self.path}: rope parameters {found!r} are not an object.")
        return _Config(self.path, found)


def _theta(config: _Config) -> float:
    return config.rope().number("rope_theta", config.number("rope_theta", 10000.0))


def _scaling(config: _Config) -> RopeScaling | None:
    rope = config.rope()
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling("linear", factor=rope.number("factor"))
    if kind == "llama3":
        return RopeScaling(
            "llama3",
            factor=rope.number("factor"),
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
            original_context=rope.whole("original_max_position_embeddings"),
        )
    raise UnsupportedModelError(f"{config.path}: rope type {kind!r} is not supported; default, linear and llama3 are.")
