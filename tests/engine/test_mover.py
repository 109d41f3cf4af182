"""Blocks out of a pool and back: every byte, no other block, any number format."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from energyopt.core.config import EngineConfig, KvConfig
from energyopt.core.errors import OutOfMemoryError
from engine.fingerprint import kv_layout
from engine.models import load_model
from engine.mover import TorchMover
from engine.runner import cache_shape

_NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
DEVICES = ["cpu", pytest.param("cuda", marks=(pytest.mark.gpu, _NO_GPU))]


def _pool(dtype: torch.dtype, device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, 5, 4, 2, 2, 8, generator=generator).to(dtype).to(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_blocks_go_out_and_into_other_slots(dtype: torch.dtype, device: str) -> None:
    pool = _pool(dtype, device)
    before = pool.clone()
    mover = TorchMover(pool, "layout")
    assert mover.block_bytes == pool[:, 0].numel() * pool.element_size()
    memory = mover.allocate(2 * mover.block_bytes)
    views = [memory[: mover.block_bytes], memory[mover.block_bytes :]]
    mover.read([1, 4], views)
    mover.write([0, 3], views)
    expected = before.clone()
    expected[:, 0], expected[:, 3] = before[:, 1], before[:, 4]
    assert torch.equal(pool, expected)


def test_a_block_is_its_layers_one_after_another() -> None:
    pool = _pool(torch.float32, "cpu")
    mover = TorchMover(pool, "layout")
    view = mover.allocate(mover.block_bytes)
    mover.read([2], [view])
    assert bytes(view) == pool[:, 2].contiguous().numpy().tobytes()


def test_host_memory_that_does_not_fit_is_refused() -> None:
    with pytest.raises(OutOfMemoryError, match="bytes of host memory for KV blocks did not fit"):
        TorchMover(_pool(torch.float32, "cpu"), "layout").allocate(1 << 60)


def test_the_layout_names_weights_format_and_block(tiny_model: Path, tmp_path: Path) -> None:
    def layout(path: Path, dtype: str = "float32", block: int = 16) -> str:
        kv = KvConfig(block_tokens=block, memory_bytes=1 << 20)
        config = EngineConfig.model_validate({"model": str(path), "device": "cpu", "dtype": dtype, "kv": kv})
        loaded = load_model(config)
        return kv_layout(loaded, cache_shape(loaded, config))

    twin = tmp_path / "elsewhere"
    twin.mkdir()
    for file in tiny_model.iterdir():
        (twin / file.name).write_bytes(file.read_bytes())
    assert layout(tiny_model) == layout(twin)
    names = {layout(twin), layout(twin, dtype="bfloat16"), layout(twin, block=32)}
    weights = twin / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-2] ^= 1
    weights.write_bytes(content)
    names.add(layout(twin))
    assert len(names) == 4
