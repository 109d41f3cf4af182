"""Logits of tiny random models equal transformers', through pages, chunks and mixed batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from energyopt.core.clock import FakeClock
from energyopt.core.config import EngineConfig
from engine.batch import Batch, ScheduledRequest
from engine.models import LoadedModel, load_model
from engine.request import Request, SamplingParams
from engine.runner import TorchRunner

TOLERANCE = 1e-4
LENGTHS = (1, 7, 16, 33, 90)


def make_requests(prompts: Sequence[Sequence[int]], block_tokens: int, seed: int = 0) -> list[Request]:
    """Requests whose blocks lie scattered over the pool."""
    needed = [-(-len(prompt) // block_tokens) for prompt in prompts]
    blocks = torch.randperm(sum(needed) + 5, generator=torch.Generator().manual_seed(seed)).tolist()
    requests = []
    for number, (prompt, count) in enumerate(zip(prompts, needed, strict=True)):
        request = Request(f"r{number}", tuple(prompt), SamplingParams(temperature=0), FakeClock().now())
        request.block_ids, blocks = blocks[:count], blocks[count:]
        requests.append(request)
    return requests


def all_logits(runner: TorchRunner, requests: Sequence[Request], chunks: Sequence[int]) -> list[torch.Tensor]:
    """Logits after every chunk of every request; request i takes chunks of ``chunks[i]``, decodes stand first."""
    seen: list[list[torch.Tensor]] = [[] for _ in requests]
    while any(request.remaining for request in requests):
        items = [
            ScheduledRequest(request, request.num_computed, min(size, request.remaining), True)
            for request, size in zip(requests, chunks, strict=True)
            if request.remaining
        ]
        items.sort(key=lambda item: item.count > 1)
        rows = runner.logits(Batch(tuple(items)))
        for item, row in zip(items, rows, strict=True):
            item.request.num_computed += item.count
            seen[requests.index(item.request)].append(row)
    return [torch.stack(rows) for rows in seen]


def expected(oracle: Any, request: Request, chunk: int) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = oracle(torch.tensor([request.prompt])).logits[0]
    last = [min(start + chunk, len(request.prompt)) - 1 for start in range(0, len(request.prompt), chunk)]
    return logits[last]


def random_prompts(lengths: Sequence[int], seed: int = 1) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 256, (length,), generator=generator).tolist() for length in lengths]


def assert_equal_logits(
    loaded: LoadedModel, config: EngineConfig, oracle: Any, lengths: Sequence[int], chunks: Sequence[int]
) -> None:
    runner = TorchRunner(loaded, config, FakeClock())
    requests = make_requests(random_prompts(lengths), config.kv.block_tokens)
    got = all_logits(runner, requests, chunks)
    for request, chunk, rows in zip(requests, chunks, got, strict=True):
        wanted = expected(oracle, request, chunk)
        assert wanted.std() > 0.1  # a model that says nothing would agree with everything
        assert (rows - wanted).abs().max() <= TOLERANCE


@pytest.mark.parametrize("chunks", [(100,) * 5, (1,) * 5, (1, 3, 16, 5, 32)], ids=["whole", "single", "mixed"])
@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_logits_of_unequal_prompts_equal_transformers(
    tiny_config: EngineConfig, tiny_oracle: Any, kernels: str, chunks: Sequence[int]
) -> None:
    config = tiny_config.model_copy(update={"kernels": kernels})
    assert_equal_logits(load_model(config), config, tiny_oracle, LENGTHS, chunks)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_chunking_gives_the_same_logits(
    tiny: LoadedModel, tiny_config: EngineConfig, tiny_oracle: Any, data: st.DataObject
) -> None:
    lengths = data.draw(st.lists(st.integers(1, 70), min_size=1, max_size=5))
    chunks = [data.draw(st.integers(1, length)) for length in lengths]
    assert_equal_logits(tiny, tiny_config, tiny_oracle, lengths, chunks)


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": True},
        {"attention_bias": True, "mlp_bias": True},
        {"head_dim": 32, "num_key_value_heads": 1},
        {"num_key_value_heads": 4, "rms_norm_eps": 1e-2},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        {"max_shard_size": "100KB"},
    ],
    ids=["tied", "biases", "head_dim", "mha-eps", "theta", "linear", "llama3", "sharded"],
)
def test_every_variation_of_the_family(
    tmp_path: Path,
    tiny_saver: Callable[..., Any],
    tiny_config: EngineConfig,
    changes: dict[str, Any],
) -> None:
    oracle = tiny_saver(tmp_path, **changes)
    config = tiny_config.model_copy(update={"model": str(tmp_path)})
    if "max_shard_size" in changes:
        assert (tmp_path / "model.safetensors.index.json").is_file()
    assert_equal_logits(load_model(config), config, oracle, LENGTHS, (100, 1, 3, 16, 40))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_weights_stay_near_and_both_kernels_agree(
    tiny_config: EngineConfig, tiny_oracle: Any, dtype: str
) -> None:
    results = []
    for kernels in ("auto", "reference"):
        config = tiny_config.model_copy(update={"kernels": kernels, "dtype": dtype})
        runner = TorchRunner(load_model(config), config, FakeClock())
        requests = make_requests(random_prompts(LENGTHS), config.kv.block_tokens)
        results.append(torch.cat(all_logits(runner, requests, (100, 1, 3, 16, 40))))
    wanted = torch.cat([expected(tiny_oracle, r, c) for r, c in zip(requests, (100, 1, 3, 16, 40), strict=True)])
    spread = float(wanted.std())
    assert (results[0] - wanted).abs().max() < 0.2 * spread
    assert (results[0] - results[1]).abs().max() < 0.05 * spread


def test_greedy_text_equals_transformers_generate(
    tiny: LoadedModel, tiny_config: EngineConfig, tiny_oracle: Any, driver: Callable[..., list[list[int]]]
) -> None:
    prompts = random_prompts(LENGTHS)
    config = tiny_config.model_copy(update={"max_num_batched_tokens": 24, "max_num_seqs": 4})
    got = driver(tiny, config, prompts, 24)
    for prompt, output in zip(prompts, got, strict=True):
        ids = torch.tensor([prompt])
        wanted = tiny_oracle.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=24,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert output == wanted[0, len(prompt) :].tolist()
