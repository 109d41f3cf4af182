"""Families with windows, latent attention, experts and recurrent states over ranks: the tokens of one rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig, KvConfig, ParallelLayout
from energyopt.core.errors import ConfigError
from energyopt.core.units import Bytes
from engine.batch import Runner
from engine.models import load_model, open_model
from engine.parallel.fake import ThreadCrew
from engine.parallel.runner import ParallelRunner
from engine.runner import TorchRunner
from tests.engine.model.greedy import greedy
from tests.engine.model.tiny import BASE

Sizes = dict[str, int]
BLOCK = 4
LENGTHS = (1, 3, 4, 5, 9, 21)
SIZES: dict[str, Any] = {**BASE, "num_hidden_layers": 4}
WINDOWED: dict[str, Any] = {"head_dim": 16, "sliding_window": 9}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}
ALTERNATING = ["linear_attention", "full_attention"] * 2
HYBRID: dict[str, Any] = {
    "initializer_range": 0.1,
    "layer_types": ALTERNATING,
    "head_dim": 16,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 20,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 6,
}
KIMI: dict[str, Any] = {
    **LATENT,
    "initializer_range": 0.1,
    "layer_types": ALTERNATING,
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "num_local_experts": 8,
    "q_lora_rank": None,
    "linear_head_dim": 6,
    "linear_num_heads": 4,
}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", WINDOWED),
    "gpt-oss": (
        "GptOssConfig",
        "GptOssForCausalLM",
        {**WINDOWED, "num_local_experts": 6, "num_experts_per_tok": 2},
    ),
    "deepseek": ("DeepseekV3Config", "DeepseekV3ForCausalLM", LATENT),
    "qwen3-next": ("Qwen3NextConfig", "Qwen3NextForCausalLM", HYBRID),
    "kimi-linear": ("KimiLinearConfig", "KimiLinearForCausalLM", KIMI),
}
CASES: list[tuple[str, Sizes]] = [
    ("gemma3", {"tp": 2, "pp": 2}),
    ("gpt-oss", {"tp": 2, "ep": 2}),
    ("deepseek", {"tp": 4, "dcp": 2}),
    ("deepseek", {"tp": 2, "ep": 2, "pp": 2}),
    ("qwen3-next", {"tp": 2, "pp": 2}),
    ("kimi-linear", {"tp": 2}),
    ("kimi-linear", {"pp": 2}),
]
Made = Callable[[str], EngineConfig]


@pytest.fixture(scope="module")
def family(family_saver: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Made:
    made: dict[str, EngineConfig] = {}

    def make(name: str) -> EngineConfig:
        if name not in made:
            directory: Path = tmp_path_factory.mktemp("family")
            config, model, changes = FAMILIES[name]
            family_saver(directory, config, model, {**SIZES, **changes})
            kv = KvConfig(block_tokens=BLOCK, memory_bytes=Bytes(2**20))
            own = EngineConfig(model=str(directory), dtype="float32", device="cpu", threads=1, kv=kv)
            made[name] = own.model_copy(update={"max_num_batched_tokens": 24, "max_num_seqs": 4})
        return made[name]

    return make


def drive(runner: Runner, config: EngineConfig) -> list[list[int]]:
    """Greedy continuations of one prompt a length."""
    prompts = [tuple((7 * at + number) % 61 + 3 for at in range(n)) for number, n in enumerate(LENGTHS)]
    return greedy(runner, config, prompts, 4, max_model_len=128)


@pytest.mark.parametrize(("name", "sizes"), CASES, ids=str)
def test_ranks_give_the_tokens_of_one(family: Made, name: str, sizes: Sizes) -> None:
    config = family(name)
    wanted = drive(TorchRunner(load_model(config), config, MonotonicClock()), config)
    assert len({tuple(output) for output in wanted}) > 2, "a model that says one thing agrees with everything"
    changed = config.model_copy(update={"layout": ParallelLayout(**sizes)})
    many = ParallelRunner(open_model(changed), changed, MonotonicClock(), hire=ThreadCrew)
    try:
        assert drive(many, changed) == wanted
    finally:
        many.close()


@pytest.mark.parametrize(
    ("name", "sizes", "words"),
    [
        ("qwen3-next", {"tp": 4}, "recurrent heads divide over tp, and the model has 2"),
        ("qwen3-next", {"pp": 4}, "as many recurrent layers as the others"),
        ("kimi-linear", {"tp": 2, "dcp": 2}, "dcp = 2 is not allowed for a model with recurrent states"),
        ("gemma3", {"tp": 3}, "attention heads divide over tp"),
        ("deepseek", {"tp": 2, "dcp": 4}, "dcp only undoes copies"),
    ],
    ids=str,
)
def test_what_a_family_cannot_do_is_refused_before_a_rank_starts(
    family: Made, name: str, sizes: Sizes, words: str
) -> None:
    config = family(name).model_copy(update={"layout": ParallelLayout(**sizes)})

    def hire(names: Sequence[str], memory: object) -> Any:
        raise AssertionError("a rank was started")

    with pytest.raises(ConfigError, match=words):
        ParallelRunner(open_model(config), config, MonotonicClock(), hire=hire)
