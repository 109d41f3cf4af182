"""What every family promises: the logits of transformers, whatever the scheduler does with its sequences.

Tiny random models are written by transformers and served by the real scheduler, cache and runner; every row of logits
that is sampled from is compared with transformers' for the same text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from energyopt.core.clock import FakeClock
from energyopt.core.config import EngineConfig, KvConfig
from energyopt.core.units import Bytes
from engine.batch import Batch
from engine.divergence import divergence
from engine.inputs import step_inputs
from engine.models import load_model, open_source
from engine.parallel.ports import Collective, Place
from engine.request import Request
from engine.runner import TorchRunner, cache_shape, pool_plan
from tests.engine.model.tiny import BASE

Save = Callable[[Path, str, str, dict[str, Any]], Any]
Record = Callable[..., tuple[list[Request], dict[tuple[str, int], torch.Tensor]]]
InRanks = Callable[[int, Callable[[Collective], Any]], list[Any]]
TOLERANCE = 1e-4
MOE: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
WINDOWED: dict[str, Any] = {"head_dim": 16, "sliding_window": 9}
LATENT: dict[str, Any] = {
    **MOE,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 32,
}


@dataclass(frozen=True)
class Case:
    """One tiny model: transformers' configuration class by name, and what it is made with."""

    config: str
    model: str
    changes: dict[str, Any] = field(default_factory=dict)
    blocks: int = 22
    """Of a pool that four sequences of 28 tokens outgrow."""


CASES = {
    "qwen2.5": Case("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3": Case("Qwen3Config", "Qwen3ForCausalLM", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3-moe": Case(
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {**MOE, "head_dim": 8, "num_experts": 6, "norm_topk_prob": True, "mlp_only_layers": [0]},
    ),
    "gemma3": Case(
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {
            **WINDOWED,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
            "query_pre_attn_scalar": 12,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
            },
        },
        blocks=48,
    ),
    "gpt-oss": Case(
        "GptOssConfig",
        "GptOssForCausalLM",
        {
            **WINDOWED,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "rope_parameters": {**YARN, "truncate": False},
        },
        blocks=34,
    ),
    "deepseek-v2": Case(
        "DeepseekV2Config",
        "DeepseekV2ForCausalLM",
        {
            **LATENT,
            "q_lora_rank": None,
            "topk_method": "group_limited_greedy",
            "routed_scaling_factor": 1.5,
        },
    ),
    "deepseek-v3": Case(
        "DeepseekV3Config",
        "DeepseekV3ForCausalLM",
        {
            **LATENT,
            "q_lora_rank": 20,
            "attention_bias": True,
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7},
        },
    ),
    "kimi-k2": Case(
        "DeepseekV3Config",
        "DeepseekV3ForCausalLM",
        {
            **LATENT,
            "q_lora_rank": 20,
            "n_group": 1,
            "topk_group": 1,
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "qwen3-next": Case(
        "Qwen3NextConfig",
        "Qwen3NextForCausalLM",
        {
            **MOE,
            "initializer_range": 0.1,
            "num_hidden_layers": 4,
            "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
            "head_dim": 16,
            "num_experts": 6,
            "shared_expert_intermediate_size": 20,
            "mlp_only_layers": [1],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 6,
        },
        blocks=26,
    ),
    "kimi-linear": Case(
        "KimiLinearConfig",
        "KimiLinearForCausalLM",
        {
            **LATENT,
            "initializer_range": 0.1,
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "num_local_experts": 8,
            "q_lora_rank": None,
            "linear_head_dim": 6,
            "linear_num_heads": 4,
            "routed_scaling_factor": 1.5,
        },
        blocks=26,
    ),
}


@dataclass(frozen=True)
class Tiny:
    """A checkpoint on disk, and transformers' model of it."""

    directory: Path
    oracle: Any
    blocks: int
    record: Record

    def config(self, **changes: Any) -> EngineConfig:
        kv = {"block_tokens": 4, "memory_bytes": Bytes(2**20), **changes.pop("kv", {})}
        made = EngineConfig(model=str(self.directory), dtype="float32", device="cpu", threads=1, kv=KvConfig(**kv))
        return made.model_copy(update={"max_num_batched_tokens": 24, "max_num_seqs": 4, **changes})

    def expected(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits (len(tokens), vocab) behind each token."""
        with torch.inference_mode():
            logits: torch.Tensor = self.oracle(torch.tensor([tokens])).logits[0]
        return logits

    def serve(self, config: EngineConfig, prompts: list[list[int]], new: int, make: Any = None) -> list[Request]:
        """Greedy continuations, with every row of logits compared."""
        requests, rows = self.record(config, prompts, new, make)
        for request in requests:
            wanted = self.expected([*request.prompt, *request.output])
            assert wanted.std() > 0.1  # a model that says nothing would agree with everything
            for count in range(len(request.prompt), request.num_tokens):
                assert (rows[request.id, count] - wanted[count - 1]).abs().max() <= TOLERANCE
        return requests


@pytest.fixture(scope="module", params=CASES)
def tiny(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, family_saver: Save, record: Record
) -> Tiny:
    case = CASES[request.param]
    directory = tmp_path_factory.mktemp("family")
    model = family_saver(directory, case.config, case.model, {**BASE, **case.changes})
    return Tiny(directory, model, case.blocks, record)


def prompts(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(3, 64, (length,), generator=generator).tolist() for length in lengths]


def test_chunks_unequal_lengths_and_prefix_hits(tiny: Tiny) -> None:
    long, *others = prompts(61, 5, 18, 1)
    served = tiny.serve(tiny.config(), [long, *others, [*long[:50], 9, 8, 7], long, [*long, 4, 4]], 6)
    assert max(request.cached_tokens for request in served) >= 32
    assert all(len(request.output) == 6 for request in served)


def test_preemption(tiny: Tiny) -> None:
    loaded = load_model(tiny.config())
    size = cache_shape(loaded, tiny.config()).bytes_per_block
    small = tiny.config(kv={"memory_bytes": Bytes(tiny.blocks * size)})
    served = tiny.serve(small, prompts(7, 9, 6, 8), 20)
    assert sum(request.num_preemptions for request in served) > 0


def test_tensor_ranks(tiny: Tiny, in_ranks: InRanks) -> None:
    """Two ranks of two for all that is split, experts whole."""

    def work(ranks: Collective) -> list[list[int]]:
        place, config = Place(tensor=ranks, experts=ranks), tiny.config()
        served = tiny.serve(config, prompts(27, 6), 2, lambda recorder: recorder(load_model(config, place), config))
        return [request.output for request in served]

    first, second = in_ranks(2, work)
    assert first == second


def test_pipeline_stages(tiny: Tiny) -> None:
    layers = tiny.oracle.config.num_hidden_layers
    if "linear_attention" in (getattr(tiny.oracle.config, "layer_types", None) or ()):
        pytest.skip("a stage of one recurrent layer keeps no token; test_parallel_families has stages that are alike")
    config = tiny.config()
    loaded = [load_model(config, Place(layers=part)) for part in (range(1), range(1, layers))]
    blocks = min(cache_shape(one, config).num_blocks for one in loaded)
    first, last = (TorchRunner(one, config, FakeClock(), pool_plan(one, config).shape(blocks)) for one in loaded)

    def logits(batch: Batch) -> torch.Tensor:
        inputs = step_inputs(batch)
        return last.head(inputs, last.stage(inputs, first.stage(inputs)))

    tiny.serve(config, prompts(27, 6), 2, lambda recorder: recorder(loaded[1], config, logits))


def test_the_plain_operators(tiny: Tiny) -> None:
    tiny.serve(tiny.config(kernels="reference"), prompts(17, 4), 2)


def test_what_rounding_costs(tiny: Tiny) -> None:
    """Every group of layers has blocks of its own, and losses are those of transformers; experts are rounded too."""
    text, count = "THESAMETEXTFOREVERYFAMILY" * 2, 40
    found = divergence(tiny.config(quantization="int8"), text, count)
    ids = open_source(tiny.config())[0].tokenizer.encode(text)[:count]
    wanted = torch.nn.functional.cross_entropy(tiny.expected(ids)[:-1], torch.tensor(ids[1:]))
    assert found.losses[0] == pytest.approx(float(wanted), abs=1e-4)
    assert 0 < found.nats < 0.2  # now and then another expert is chosen
    share = re.fullmatch(r"int8 for (\d+\.\d)% of the weights, in float32", found.weights)
    assert share is not None
    assert float(share[1]) > 85, "routers, convolutions and norms are a large part of tiny models only"
