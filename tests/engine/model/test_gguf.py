"""GGUF files: the container, the Llama in it, and every way in which a file can be wrong."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from energyopt.core.clock import FakeClock
from energyopt.core.config import EngineConfig
from energyopt.core.errors import ModelError, ModelFormatError, UnsupportedModelError
from energyopt.core.units import Seconds
from engine.batch import Batch, ScheduledRequest
from engine.model.gguf_file import GgufFile
from engine.model.gguf_source import GgufSource, unpermute
from engine.models import load_model, resolve_model
from engine.request import Request, SamplingParams
from engine.runner import TorchRunner

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def permute(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """What converters do to query and key rows: the halves of each head interleaved."""
    return rows.view(heads, 2, rows.shape[0] // heads // 2, -1).transpose(1, 2).reshape(rows.shape)


def write_llama(
    path: Path, model: Any, *, drop: str = "", replace: dict[str, np.ndarray] | None = None, **keys: Any
) -> None:
    """Write transformers' ``model`` as a float32 GGUF file with a byte-level tokenizer."""
    config = model.config
    writer = gguf.GGUFWriter(path, keys.pop("architecture", "llama"))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    numbers = {
        "llama.block_count": config.num_hidden_layers,
        "llama.context_length": config.max_position_embeddings,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
    }
    for key, value in {**numbers, **keys}.items():
        (writer.add_string if isinstance(value, str) else writer.add_uint32)(key, value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", config.rms_norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*alphabet[:-1], "he"])
    writer.add_token_merges(["h e"])
    tensors = {gguf_name(name): rows(name, value, config) for name, value in model.named_parameters()}
    for name, data in {**tensors, **(replace or {})}.items():
        if name != drop:
            writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_name(name: str) -> str:
    for own, other in NAMES.items():
        name = name.replace(own, other)
    name = name.replace("model.layers.", "blk.").replace("model.embed_tokens", "token_embd")
    return name.replace("model.norm", "output_norm").replace("lm_head", "output")


def rows(name: str, value: torch.Tensor, config: Any) -> np.ndarray:
    value = value.detach()
    if "q_proj" in name:
        value = permute(value, config.num_attention_heads)
    elif "k_proj" in name:
        value = permute(value, config.num_key_value_heads)
    found: np.ndarray = value.contiguous().numpy()
    return found


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory, tiny_saver: Callable[..., Any]) -> Any:
    return tiny_saver(tmp_path_factory.mktemp("oracle"), num_hidden_layers=2)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, oracle: Any) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_llama(path, oracle)
    return path


def first_logits(path: Path, config: EngineConfig, prompt: list[int]) -> torch.Tensor:
    config = config.model_copy(update={"model": str(path)})
    runner = TorchRunner(load_model(config), config, FakeClock())
    request = Request("r", tuple(prompt), SamplingParams(), Seconds(0.0), block_ids=list(range(len(prompt))))
    return runner.logits(Batch((ScheduledRequest(request, 0, len(prompt), True),)))[0]


def wanted_logits(oracle: Any, prompt: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = oracle(torch.tensor([prompt])).logits[0, -1]
    return found


def test_permuted_rows_are_undone(good: Path, oracle: Any, tiny_config: EngineConfig) -> None:
    prompt = list(range(3, 60))
    assert (first_logits(good, tiny_config, prompt) - wanted_logits(oracle, prompt)).abs().max() < 1e-4
    value = torch.randn(24, 5)
    assert torch.equal(unpermute(permute(value, 3), 3), value)
    assert not torch.equal(permute(value, 3), value)


def test_the_demo_file_says_what_it_is() -> None:
    source = GgufSource(GgufFile(resolve_model("smollm2-135m")))
    spec = source.spec
    assert (spec.layers, spec.hidden, spec.intermediate, spec.heads, spec.kv_heads) == (30, 576, 1536, 9, 3)
    assert (spec.head_dim, spec.vocab, spec.context, spec.tied) == (64, 49152, 8192, True)
    assert spec.rope.theta == 100000
    assert spec.eps == pytest.approx(1e-5)
    reader = gguf.GGUFReader(resolve_model("smollm2-135m"))
    ours, theirs = GgufFile(resolve_model("smollm2-135m")), {tensor.name: tensor for tensor in reader.tensors}
    assert set(ours.tensors) == set(theirs)
    for name in ("blk.7.ffn_down.weight", "blk.0.attn_norm.weight"):
        wanted = gguf.quants.dequantize(theirs[name].data, theirs[name].tensor_type)
        assert np.array_equal(ours.load(name), wanted)


def test_the_metadata_equals_the_reference_reader(good: Path) -> None:
    reader = gguf.GGUFReader(good)
    expected = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert GgufFile(good).metadata == expected


def test_rope_factors_in_the_file_divide_frequencies(tmp_path: Path, oracle: Any, tiny_config: EngineConfig) -> None:
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    write_llama(tmp_path / "a.gguf", oracle, replace={"rope_freqs.weight": factors})
    spec = GgufSource(GgufFile(tmp_path / "a.gguf")).spec
    assert spec.rope.angles()[0] == pytest.approx([10000 ** (-2 * i / 16) / factors[i] for i in range(8)])
    write_llama(tmp_path / "b.gguf", oracle, replace={"rope_freqs.weight": factors[:3]})
    with pytest.raises(ModelFormatError, match="3 rope factors for 8"):
        GgufSource(GgufFile(tmp_path / "b.gguf"))


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"architecture": "mamba"}, UnsupportedModelError, "'mamba'; supported are 'llama'"),
        ({"architecture": "qwen9"}, UnsupportedModelError, "'qwen9'; supported are"),
        ({"llama.expert_count": 8}, UnsupportedModelError, "with experts"),
        ({"llama.rope.scaling.type": "yarn"}, UnsupportedModelError, "'yarn'"),
        ({"llama.rope.dimension_count": 8}, UnsupportedModelError, "rotates 8 of 16"),
        ({"llama.attention.head_count_kv": 3}, ModelFormatError, "not a multiple of 3"),
        ({"llama.attention.head_count": "four"}, ModelFormatError, "head_count = 'four'"),
        ({"llama.block_count": 3}, ModelFormatError, "no tensor 'blk.2."),
        ({"llama.block_count": 2**31}, ModelFormatError, "layers 2147483648 is above 10000"),
        ({"drop": "blk.1.attn_v.weight"}, ModelFormatError, "no tensor 'blk.1.attn_v.weight'"),
        ({"drop": "token_embd.weight"}, ModelFormatError, "token_embd.weight"),
        ({"llama.feed_forward_length": 96}, ModelFormatError, "'blk.0.ffn_gate.weight' has shape"),
        ({"general.alignment": 3}, ModelFormatError, "alignment 3"),
    ],
    ids=str,
)
def test_a_file_that_does_not_fit_is_named(
    tmp_path: Path, oracle: Any, tiny_config: EngineConfig, changes: dict[str, Any], error: type[ModelError], words: str
) -> None:
    path = tmp_path / "bad.gguf"
    write_llama(path, oracle, **changes)
    with pytest.raises(error, match=words) as caught:
        load_model(tiny_config.model_copy(update={"model": str(path)}))
    assert "bad.gguf" in str(caught.value)


def test_a_truncated_file_is_named_with_its_tensor(tmp_path: Path, good: Path) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(good.read_bytes()[:-100])
    with pytest.raises(ModelFormatError, match=r"short\.gguf is truncated: tensor '.+' ends at byte"):
        GgufFile(path)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_corruption_of_the_header_gets_through_untyped(tmp_path: Path, good: Path, data: st.DataObject) -> None:
    """Cut or overwritten anywhere, the file opens or is refused in one sentence; it never hangs or takes memory."""
    content = bytearray(good.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    else:
        at = data.draw(st.integers(0, 12000))
        patch = data.draw(st.one_of(st.binary(min_size=1, max_size=8), st.just(struct.pack("<Q", 2**63 + 5))))
        content[at : at + len(patch)] = patch
    path = tmp_path / "fuzz.gguf"
    path.write_bytes(content)
    with contextlib.suppress(ModelError):
        GgufSource(GgufFile(path))


@pytest.mark.parametrize("content", [b"", b"GGU", b"GGUF", b"PK\x03\x04" * 10, b"GGUF" + struct.pack("<IQQ", 9, 0, 0)])
def test_what_is_not_such_a_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "not.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"not\.gguf"):
        GgufFile(path)


@pytest.mark.parametrize(("tensors", "keys", "words"), [(0, 2**40, "key ''"), (2**40, 0, "tensor ''")])
def test_a_name_may_not_repeat(tmp_path: Path, tensors: int, keys: int, words: str) -> None:
    """Else zeros would be read as millions of nameless entries, at minutes for the size of a small model."""
    path = tmp_path / "zeros.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + bytes(1000))
    with pytest.raises(ModelFormatError, match=rf"zeros\.gguf holds the (metadata )?{words} twice"):
        GgufFile(path)


def test_a_message_repeats_no_endless_name(tmp_path: Path) -> None:
    entry = struct.pack("<Q", 5000) + b"k" * 5000 + struct.pack("<II", 4, 1)
    path = tmp_path / "long.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + entry + entry)
    with pytest.raises(ModelFormatError, match="twice") as caught:
        GgufFile(path)
    assert len(str(caught.value)) < 300 + len(str(path))
