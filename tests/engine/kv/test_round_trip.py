"""Offload as its users test it: greedy text, bytes stored, device forgotten, bytes loaded, the same text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from engine.models import resolve_model

if TYPE_CHECKING:
    from tests.engine.kv.conftest import WholeEngine

TEXT = "The capital of France is Paris, and the capital of Italy is Rome. " * 6


@pytest.fixture(params=["tiny", "smollm2-135m"])
def model(request: pytest.FixtureRequest, tiny_model: Path) -> str:
    if request.param == "tiny":
        return str(tiny_model)
    resolve_model(request.param)
    return str(request.param)


def test_a_reload_gives_the_same_text(model: str, tmp_path: Path, whole_engine: Callable[..., WholeEngine]) -> None:
    host = {"kind": "host", "bytes_per_host": 1 << 26}
    disk = {"kind": "disk", "bytes_per_host": 1 << 28, "path": str(tmp_path)}
    engine = whole_engine(model, host, disk)
    prompt = engine.tokenizer.encode(TEXT)[:50]
    first = engine.ask(prompt)
    engine.settle()
    assert engine.count("host").store_bytes > 0
    assert engine.count("disk").store_bytes > 0
    engine.reset("device")
    assert engine.ask(prompt) == first
    assert engine.records[-1].cached_by_tier == {"host": 48}
    assert engine.count("host").load_bytes > 0
    engine.reset("device", "host")
    assert engine.ask(prompt) == first
    assert engine.records[-1].cached_by_tier == {"disk": 48}
    assert engine.count("disk").load_bytes > 0


def test_a_restart_finds_the_disk_warm(
    tiny_model: Path, tmp_path: Path, whole_engine: Callable[..., WholeEngine]
) -> None:
    disk = {"kind": "disk", "bytes_per_host": 1 << 28, "path": str(tmp_path)}
    engine = whole_engine(str(tiny_model), disk)
    prompt = engine.tokenizer.encode(TEXT)[:90]
    first = engine.ask(prompt)
    engine.front.close()
    again = whole_engine(str(tiny_model), disk)
    assert again.ask(prompt) == first
    assert again.records[-1].cached_by_tier == {"disk": 80}


def test_another_model_on_the_same_disk_hits_nothing(
    tiny_model: Path, tmp_path: Path, whole_engine: Callable[..., WholeEngine]
) -> None:
    disk = {"kind": "disk", "bytes_per_host": 1 << 28, "path": str(tmp_path / "kv")}
    engine = whole_engine(str(tiny_model), disk)
    prompt = engine.tokenizer.encode(TEXT)[:90]
    engine.ask(prompt)
    engine.settle()
    twin = tmp_path / "fine-tuned"
    twin.mkdir()
    for file in tiny_model.iterdir():
        (twin / file.name).write_bytes(file.read_bytes())
    weights = bytearray((twin / "model.safetensors").read_bytes())
    weights[-3] ^= 0x10
    (twin / "model.safetensors").write_bytes(weights)
    other = whole_engine(str(twin), disk)
    other.ask(prompt)
    assert other.records[-1].cached_by_tier == {}


def test_divergence_at_every_offset_of_a_block(tiny_model: Path, whole_engine: Callable[..., WholeEngine]) -> None:
    """vLLM #57610: a hit reaches to the last whole block before the first other token, wherever that is."""
    engine = whole_engine(str(tiny_model), {"kind": "host", "bytes_per_host": 1 << 26})
    plain = whole_engine(str(tiny_model), prefix_caching=False)
    common = engine.tokenizer.encode(TEXT)[:64]
    engine.ask([*common, 1, 2, 3])
    engine.settle()
    for length in range(48, 65):
        prompt = [*common[:length], *([9] * 20)]
        engine.reset("device")
        assert engine.ask(prompt) == plain.ask(prompt)
        assert engine.records[-1].cached_by_tier == {"host": length // 16 * 16}
