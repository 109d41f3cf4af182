"""Guesses of a smaller real model: opened beside the larger one, and the larger one's tokens, greedy and sampled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from energyopt.core.clock import FakeClock
from energyopt.core.config import EngineConfig, SpeculativeConfig
from energyopt.core.errors import ConfigError
from energyopt.core.units import Seconds
from engine.kv.configured import cache_for
from engine.request import Request, SamplingParams
from engine.runner import TorchRunner
from engine.runners import open_runner
from engine.scheduler import Scheduler
from engine.speculative.assembly import drafts_for

PROMPTS = ([5, 6, 7, 8] * 6, [9, 10, 11], [20, *range(40, 60), 20, 40, 41])


def outputs(config: EngineConfig, **params: Any) -> tuple[list[list[int]], int, Any]:
    """Tokens, then steps, then what became of guesses."""
    loaded, runner = open_runner(config, FakeClock())
    drafts = drafts_for(config.speculative_config, runner, None)
    scheduler = Scheduler(config, cache_for(config, runner.cache), max_model_len=loaded.max_model_len, drafts=drafts)
    requests = [
        Request(f"r{i}", tuple(prompt), SamplingParams(max_tokens=40, seed=i, **params), Seconds(float(i)))
        for i, prompt in enumerate(PROMPTS)
    ]
    for made in requests:
        scheduler.add(made)
    steps = 0
    while (batch := scheduler.schedule()) is not None:
        scheduler.settle(batch, runner.run(batch))
        scheduler.check_integrity()
        steps += 1
    runner.close()
    return [made.output for made in requests], steps, None if drafts is None else drafts.counts


def beside(config: EngineConfig, model: Path | str, depth: int = 4) -> EngineConfig:
    wish = SpeculativeConfig(method="draft_model", model=str(model), num_speculative_tokens=depth, adaptive=False)
    return config.model_copy(update={"speculative_config": wish})


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, tiny_saver: Callable[..., Any]) -> Path:
    """One layer of one head, of the same vocabulary."""
    directory = tmp_path_factory.mktemp("draft")
    tiny_saver(directory, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, seed=7)
    return directory


@pytest.mark.parametrize("params", [{"temperature": 0}, {"temperature": 1.0}, {"temperature": 0.1, "logprobs": 2}])
def test_the_tokens_of_the_model_alone(tiny_config: EngineConfig, small: Path, params: dict[str, Any]) -> None:
    plain, steps, none = outputs(tiny_config, **params)
    knowing, fewer, true = outputs(beside(tiny_config, tiny_config.model), **params)
    guessing, most, some = outputs(beside(tiny_config, small), **params)
    assert none is None
    assert plain == knowing == guessing
    assert true.accepted == true.drafted > 60
    assert fewer < 0.4 * steps
    assert most <= steps
    assert 0 <= some.accepted < some.drafted


def test_both_pools_take_the_memory_of_one(tiny_config: EngineConfig, small: Path) -> None:
    loaded, runner = open_runner(beside(tiny_config, small), FakeClock())
    assert isinstance(runner, TorchRunner)
    assert runner.draft is not None
    own, other = runner.cache, runner.draft.runner.cache
    # Two layers of two heads of 16 beside one layer of one head of 32.
    assert own.bytes_per_block == 2 * other.bytes_per_block
    used = own.num_blocks * own.bytes_per_block + other.num_blocks * other.bytes_per_block
    assert 0 <= 2**20 - used < own.bytes_per_block + other.bytes_per_block
    assert abs(own.num_blocks - other.num_blocks) <= 1
    assert loaded.name == tiny_config.model
    runner.close()


def test_a_model_of_another_vocabulary_is_refused(
    tiny_config: EngineConfig, tmp_path: Path, tiny_saver: Callable[..., Any]
) -> None:
    tiny_saver(tmp_path, num_hidden_layers=1)
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"A":', '"AB":'))
    with pytest.raises(ConfigError, match=r"a draft model needs the tokens of the model, and its token \d+ is 'AB'"):
        open_runner(beside(tiny_config, tmp_path), FakeClock())
