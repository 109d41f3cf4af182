"""A whole engine on Triton's operators, interpreted: the same tokens as on the plain twins, whatever the batch does."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

pytest.importorskip("triton", reason="the kernels need triton")

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig, KernelsName, KvConfig, Quantization
from energyopt.core.units import Bytes
from engine.graphs import Replay
from engine.models import load_model
from engine.runner import TorchRunner
from kernels.quant_matmul import quant_matmul
from kernels.quant_weights import QuantizedWeight
from tests.engine.model.greedy import greedy

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, LAYERS, VOCAB = 32, 48, 2, 1, 16, 1, 256
POOL_BYTES = 12 * 4 * LAYERS * 2 * KV_HEADS * HEAD_DIM * 4  # twelve blocks of four tokens
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER,
    "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "num_hidden_layers": LAYERS,
    "vocab_size": VOCAB, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
    "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama as Hugging Face lays it out."""
    folder, generator = tmp_path_factory.mktemp("tiny"), torch.Generator().manual_seed(11)

    def weight(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * (0.3 if len(shape) > 1 else 0.1) + (len(shape) == 1)

    tensors = {"model.embed_tokens.weight": weight(VOCAB, HIDDEN), "lm_head.weight": weight(VOCAB, HIDDEN)}
    tensors["model.norm.weight"] = weight(HIDDEN)
    for index in range(LAYERS):
        name = f"model.layers.{index}."
        tensors |= {
            name + "input_layernorm.weight": weight(HIDDEN),
            name + "post_attention_layernorm.weight": weight(HIDDEN),
            name + "self_attn.q_proj.weight": weight(HEADS * HEAD_DIM, HIDDEN),
            name + "self_attn.k_proj.weight": weight(KV_HEADS * HEAD_DIM, HIDDEN),
            name + "self_attn.v_proj.weight": weight(KV_HEADS * HEAD_DIM, HIDDEN),
            name + "self_attn.o_proj.weight": weight(HIDDEN, HEADS * HEAD_DIM),
            name + "mlp.gate_proj.weight": weight(INNER, HIDDEN),
            name + "mlp.up_proj.weight": weight(INNER, HIDDEN),
            name + "mlp.down_proj.weight": weight(HIDDEN, INNER),
        }
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, [])).save(str(folder / "tokenizer.json"))
    return folder


class Recorder:
    """Satisfies ``Capturer``: a graph that is the step itself, run again on whatever its tensors hold now."""

    def __init__(self) -> None:
        self.captured = self.replayed = 0

    def capture(self, step: Callable[[], torch.Tensor]) -> Replay:
        self.captured += 1
        step()

        def replay() -> torch.Tensor:
            self.replayed += 1
            return step()

        return replay


def generate(
    directory: Path, kernels: KernelsName, prompts: Sequence[Sequence[int]], new: int, capturer: Recorder | None = None,
    quantization: Quantization = "auto",
) -> list[list[int]]:  # fmt: skip
    """Greedy continuations through scheduler, pages and runner, in steps of few tokens and a pool that is too small."""
    config = EngineConfig(
        model=str(directory), kernels=kernels, dtype="float32", device="cpu", threads=1, max_num_seqs=4,
        max_num_batched_tokens=24, kv=KvConfig(block_tokens=4, memory_bytes=Bytes(POOL_BYTES)),
        quantization=quantization,
    )  # fmt: skip
    loaded = load_model(config)
    runner = TorchRunner(loaded, config, MonotonicClock(), capturer=capturer)
    return greedy(runner, config, prompts, new, max_model_len=loaded.max_model_len)


def test_the_same_tokens_as_on_the_plain_twins_with_and_without_graphs(directory: Path) -> None:
    prompts = [list(range(s, s + n)) for s, n in ((3, 21), (3, 21), (90, 5))]
    expected = generate(directory, "reference", prompts, 4)
    assert generate(directory, "torch", prompts, 4) == expected
    assert generate(directory, "triton", prompts, 4) == expected
    recorder = Recorder()
    assert generate(directory, "triton", prompts, 4, recorder) == expected
    assert recorder.replayed > recorder.captured > 0
    assert len({tuple(tokens) for tokens in expected}) == 2


@pytest.mark.parametrize("quantization", ["int4", "int8"])
def test_packed_weights_give_the_tokens_of_the_rounded_ones(
    directory: Path, quantization: Quantization, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every projection and the output's product run on packed weights, by rows alone and together."""
    seen: list[tuple[int, int, int]] = []

    def counted(x: torch.Tensor, weight: QuantizedWeight) -> torch.Tensor:
        seen.append((len(x), weight.bits, weight.outputs))
        return quant_matmul(x, weight)

    monkeypatch.setattr("kernels.quant_linear.quant_matmul", counted)
    prompts = [list(range(s, s + n)) for s, n in ((3, 9), (90, 5))]
    expected = generate(directory, "reference", prompts, 3, quantization=quantization)
    assert not seen
    assert generate(directory, "triton", prompts, 3, quantization=quantization) == expected
    assert {bits for _, bits, _ in seen} == {int(quantization[-1])}
    assert {outputs for _, _, outputs in seen} == {(HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN, 2 * INNER, VOCAB}
    assert len({rows for rows, _, _ in seen}) > 1
