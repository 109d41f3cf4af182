"""Models whose layers keep windows or states, through real tiers: what comes back gives the same tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig
from energyopt.core.units import Seconds
from engine.kv.blocks import DEVICE
from engine.kv.configured import cache_for
from engine.models import load_model
from engine.offload import tiers_for
from engine.request import Request, SamplingParams
from engine.runner import TorchRunner
from engine.scheduler import Scheduler
from engine.step import StepLoop
from tests.engine.model.tiny import BASE

SIZES: dict[str, Any] = {**BASE, "num_hidden_layers": 4, "head_dim": 16, "initializer_range": 0.1}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "windows": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"] * 2},
    ),
    "states": (
        "Qwen3NextConfig",
        "Qwen3NextForCausalLM",
        {
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 20,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 6,
        },
    ),
}
GREEDY = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
PROMPT = tuple((7 * at) % 61 + 3 for at in range(50))


class Served:
    """A scheduler over a real model; ``ask`` serves one request to its end."""

    def __init__(self, config: EngineConfig) -> None:
        clock, loaded = MonotonicClock(), load_model(config)
        runner = TorchRunner(loaded, config, clock)
        self.tiers = tiers_for(config, loaded, runner, clock)
        self.cache = cache_for(config, runner.cache, self.tiers)
        self.scheduler = Scheduler(config, self.cache, max_model_len=128)
        self._loop = StepLoop(self.scheduler, runner, lambda settled, record: None)
        self._asked = 0

    def ask(self, *prompts: Sequence[int]) -> list[Request]:
        """Serve them together, until every copy has ended too."""
        requests = []
        for prompt in prompts:
            self._asked += 1
            requests.append(Request(f"r{self._asked}", tuple(prompt), GREEDY, Seconds(float(self._asked))))
            self.scheduler.add(requests[-1])
        deadline = time.monotonic() + 60
        worked = True
        while worked or self.scheduler.has_work or self.cache.busy or (self.tiers and self.tiers.busy):
            worked = self._loop.step()
            if not worked:
                self.cache.wait(0.002)
            self.scheduler.check_integrity()
            assert time.monotonic() < deadline
        return requests


@pytest.fixture(params=FAMILIES, scope="module")
def model(
    request: pytest.FixtureRequest, family_saver: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    directory: Path = tmp_path_factory.mktemp("hybrid")
    config, name, changes = FAMILIES[request.param]
    family_saver(directory, config, name, {**SIZES, **changes})
    return directory


def config_of(model: Path, memory: int, **kv: object) -> EngineConfig:
    return EngineConfig.model_validate(
        {
            "model": str(model),
            "device": "cpu",
            "dtype": "float32",
            "threads": 1,
            "max_num_batched_tokens": 24,
            "max_num_seqs": 4,
            "kv": {"block_tokens": 8, "memory_bytes": memory, **kv},
        }
    )


def test_a_prefix_comes_back_from_each_tier_with_the_same_tokens(model: Path, tmp_path: Path) -> None:
    tiers = [{"kind": "host", "bytes_per_host": 1 << 22}, {"kind": "disk", "bytes_per_host": 1 << 26}]
    tiers[1]["path"] = str(tmp_path)
    served = Served(config_of(model, 1 << 20, tiers=tiers))
    assert len(served.cache.layout.groups) > 1
    (first,) = served.ask(PROMPT)
    for forgotten, tier in ((("device",), "host"), (("device", "host"), "disk")):
        for name in forgotten:
            served.cache.reset(name)
        (again,) = served.ask(PROMPT)
        assert again.output == first.output
        assert again.cached_by_tier == {tier: 48}
    served.cache.close()
    warm = Served(config_of(model, 1 << 20, tiers=tiers[1:]))
    (restarted,) = warm.ask(PROMPT)
    assert (restarted.output, restarted.cached_by_tier) == (first.output, {"disk": 48})
    warm.cache.close()


def test_sessions_that_exceed_the_pool_say_the_same_with_tiers_and_without(model: Path, tmp_path: Path) -> None:
    """Eviction, preemption and loads between the turns of four sessions in a pool for one."""
    tiers = [{"kind": "host", "bytes_per_host": 1 << 19}, {"kind": "disk", "bytes_per_host": 1 << 26}]
    tiers[1]["path"] = str(tmp_path)
    alone = Served(config_of(model, 1 << 20, prefix_caching=False))
    small = Served(config_of(model, 30 * alone.cache.shape.bytes_per_block, tiers=tiers))
    sessions = [tuple((5 * at + number) % 59 + 3 for at in range(40)) for number in range(4)]
    hits = 0
    for _ in range(2):
        expected, found = alone.ask(*sessions), small.ask(*sessions)
        assert [one.output for one in found] == [one.output for one in expected]
        hits += sum(tokens for one in found for tier, tokens in one.cached_by_tier.items() if tier != DEVICE)
        sessions = [(*prompt, *one.output) for prompt, one in zip(sessions, found, strict=True)]
    assert hits > 0
    alone.cache.close()
    small.cache.close()
