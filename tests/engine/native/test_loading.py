"""When the native kernels compute a model, and what happens where they cannot."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest

from energyopt.core.clock import FakeClock
from energyopt.core.config import EngineConfig, KvConfig
from energyopt.core.errors import ConfigError, EngineError, OutOfMemoryError
from energyopt.core.units import Bytes, Seconds
from engine.batch import Batch, DraftVerifier, Runner, ScheduledRequest, draft_limit
from engine.fingerprint import kv_layout
from engine.models import open_source
from engine.mover import TorchMover
from engine.native import loading
from engine.native.loading import load_native, wanted_weights
from engine.native.runner import NativeRunner
from engine.offload import kv_form
from engine.request import Request, SamplingParams
from engine.runner import TorchRunner
from engine.runners import open_runner
from kernels.cpu.compiler import NoCompilerError
from tests.engine.model.greedy import greedy

if TYPE_CHECKING:
    from tests.engine.native.conftest import Tiny

PROMPTS = [[1, 2, 3, 4, 5, 6, 7, 8, 9], list(range(40)), [7] * 20, list(range(40)), [5]]


def wanted(config: EngineConfig, **changes: Any) -> str | None:
    changed = EngineConfig.model_validate({**config.model_dump(), **changes})
    return wanted_weights(changed, *open_source(changed))


@pytest.mark.parametrize(
    ("changes", "form"),
    [
        ({}, "int8"),
        ({"quantization": "int4"}, "int4"),
        ({"quantization": "int8", "dtype": "float32"}, "int8"),
        ({"quantization": "auto"}, None),
        ({"quantization": "none"}, None),
        ({"kernels": "torch"}, None),
        ({"kernels": "reference"}, None),
        ({"layout": {"tp": 2}}, None),
    ],
    ids=str,
)
def test_what_a_checkpoint_of_floats_is_computed_by(tiny: Tiny, changes: dict[str, Any], form: str | None) -> None:
    assert wanted(tiny.config, **changes) == form


def gguf_file(path: Path, kind: gguf.GGMLQuantizationType) -> Path:
    """A Llama of one layer whose matrices are all of one format."""
    writer, generator = gguf.GGUFWriter(path, "llama"), np.random.default_rng(0)
    for key, value in {
        "block_count": 1,
        "embedding_length": 32,
        "feed_forward_length": 64,
        "context_length": 64,
    }.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_uint32("llama.attention.head_count", 2)
    writer.add_uint32("llama.attention.head_count_kv", 2)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    letters = [*(chr(i) for i in range(255)), "ab"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(letters)
    writer.add_token_merges(["a b"])
    writer.add_tokenizer_pre("smollm")
    square, tall = (32, 32), (64, 32)
    shapes = {"token_embd": (256, 32), "blk.0.ffn_down": (32, 64)}
    shapes |= {f"blk.0.{name}": square for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
    shapes |= {f"blk.0.{name}": tall for name in ("ffn_gate", "ffn_up")}
    for name, shape in shapes.items():
        values = generator.normal(size=shape).astype(np.float32) * 0.3
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_a_packed_file_stays_packed_unless_a_number_format_is_named(tmp_path: Path, kind: str) -> None:
    path = gguf_file(tmp_path / "m.gguf", gguf.GGMLQuantizationType[kind])
    kv = KvConfig(memory_bytes=Bytes(2**20))
    config = EngineConfig(model=str(path), device="cpu", threads=1, kv=kv)
    assert wanted(config) == "packed"
    assert wanted(config, dtype="float32") is None
    assert wanted(config, quantization="int8") == "int8"
    exact = tokens_of(open_runner(config.model_copy(update={"dtype": "float32"}), FakeClock())[1], config)
    _, runner = open_runner(config, FakeClock())
    assert isinstance(runner, NativeRunner)
    assert runner.weights == kind
    found = tokens_of(runner, config)
    same = sum(one[0] == other[0] for one, other in zip(found, exact, strict=True))
    assert same >= 3, "the same weights, but for rounded activations"


def test_a_file_of_floats_is_left_to_torch(tmp_path: Path) -> None:
    path = gguf_file(tmp_path / "m.gguf", gguf.GGMLQuantizationType.F16)
    assert wanted(EngineConfig(model=str(path), device="cpu")) is None


def tokens_of(runner: Any, config: EngineConfig, new: int = 12) -> list[list[int]]:
    """Greedy continuations of ``PROMPTS`` through scheduler, pages and runner."""
    found = greedy(runner, config, PROMPTS, new, max_model_len=64)
    runner.close()
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {"kv": {"prefix_caching": False}},
        {"max_num_batched_tokens": 8, "max_num_seqs": 8},
        {"max_num_seqs": 1},
        {"kv": {"memory_bytes": 8 * 16 * 2 * 2 * 2 * 2 * 16}},
        {"kv": {"block_tokens": 32, "match_tokens": 2}, "max_num_seqs": 1},
        {"threads": 3},
    ],
    ids=["no prefix cache", "small chunks", "one at a time", "preempted", "hits inside a block", "threads"],
)
def test_the_same_tokens(tiny: Tiny, changes: dict[str, Any]) -> None:
    usual = {"block_tokens": 16, "memory_bytes": 2**21}
    given = {**changes, "kv": {**usual, **changes.get("kv", {})}}
    config = EngineConfig.model_validate({**tiny.config.model_dump(), **given})
    runner = tiny.runner(**given)
    assert tokens_of(runner, config) == tokens_of(tiny.runner(), tiny.config)


def test_without_a_compiler_torch_computes_the_same_rounded_weights(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none() -> None:
        raise NoCompilerError("No C++ compiler: install one.")

    native = tokens_of(tiny.runner(), tiny.config)
    monkeypatch.setattr(loading, "best_library", none)
    with caplog.at_level(logging.WARNING):
        _, runner = open_runner(tiny.config, FakeClock())
    assert isinstance(runner, TorchRunner)
    assert "No C++ compiler: install one. Until then torch computes" in caplog.text
    found = tokens_of(runner, tiny.config)
    assert sum(one[0] == other[0] for one, other in zip(found, native, strict=True)) >= 3


def test_it_is_a_runner_that_verifies_drafts_and_says_what_its_pool_is(tiny: Tiny) -> None:
    runner = tiny.runner()
    checked: Runner = runner
    assert isinstance(checked, DraftVerifier)
    assert draft_limit(runner) == 16
    # Two layers, two heads of 16, keys and values in two bytes, 16 tokens.
    assert runner.cache.bytes_per_block == 2 * 2 * 16 * 2 * 2 * 16
    assert runner.cache.num_blocks == 2**21 // runner.cache.bytes_per_block
    assert runner.devices == ("cpu:0",)
    assert runner.threads == 2
    runner.close()
    runner.close()
    request = Request("r", (1, 2), SamplingParams(), Seconds(0.0))
    request.block_ids = [0]
    with pytest.raises(EngineError, match="closed"):
        runner.run(Batch((ScheduledRequest(request, 0, 2, True),)))


def test_a_pool_that_does_not_fit_is_refused(tiny: Tiny) -> None:
    with pytest.raises(OutOfMemoryError, match="did not fit"):
        tiny.runner(kv={"memory_bytes": 2**50})
    with pytest.raises(ConfigError, match="one block of 16 tokens takes 4096 bytes"):
        tiny.runner(kv={"memory_bytes": 4095})


def test_blocks_move_out_and_back(tiny: Tiny) -> None:
    runner = tiny.runner()
    request = Request("r", tuple(range(40)), SamplingParams(temperature=0), Seconds(0.0))
    request.block_ids = [3, 1, 2]
    runner.run(Batch((ScheduledRequest(request, 0, 39, False),)))
    wanted_logits = runner.logits(Batch((ScheduledRequest(request, 39, 1, True),)))
    mover = TorchMover(runner.pool, "layout")
    assert mover.block_bytes == runner.cache.bytes_per_block
    buffers = [memoryview(bytearray(mover.block_bytes)) for _ in range(3)]
    mover.read([3, 1, 2], buffers)
    mover.write([10, 11, 12], buffers)
    request.block_ids = [10, 11, 12]
    assert (runner.logits(Batch((ScheduledRequest(request, 39, 1, True),))) == wanted_logits).all()
    runner.close()


def test_blocks_of_other_runners_and_roundings_have_other_names(tiny: Tiny) -> None:
    names = set()
    for changes in ({}, {"quantization": "int4"}, {"kernels": "torch"}, {"kernels": "torch", "quantization": "int4"}):
        config = EngineConfig.model_validate({**tiny.config.model_dump(), "dtype": "bfloat16", **changes})
        opened, runner = open_runner(config, FakeClock())
        assert isinstance(runner, NativeRunner | TorchRunner)
        names.add(kv_layout(opened, runner.cache, kv_form(config, runner)))
        runner.close()
    assert len(names) == 4


def test_heads_that_do_not_fit_are_left_to_torch(
    tiny: Tiny, make_tiny: Callable[..., Tiny], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loading, "unsupported", lambda spec: "heads are odd")
    with caplog.at_level(logging.WARNING):
        assert load_native(tiny.config, *open_source(tiny.config)) is None
    assert "heads are odd" in caplog.text
