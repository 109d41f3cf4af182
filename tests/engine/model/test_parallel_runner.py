"""Ranks that compute together give the tokens of one, and the runner over them keeps the port's promises."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from energyopt.core.clock import FakeClock, MonotonicClock
from energyopt.core.config import EngineConfig, KvConfig, ParallelLayout
from energyopt.core.errors import ConfigError, EngineError, ModelError
from engine.batch import Batch, ScheduledRequest
from engine.models import load_model, open_model
from engine.parallel.fake import ThreadCrew
from engine.parallel.memory import SharedMemory
from engine.parallel.replicas import Conductor
from engine.parallel.runner import ParallelRunner
from engine.runner import TorchRunner
from tests.engine.model.ranks import BLOCK, LENGTHS, drive, request, spread, whole


@pytest.mark.parametrize("sizes", [{"tp": 2}, {"pp": 3}, {"tp": 2, "pp": 2}, {"tp": 4, "dcp": 2}], ids=str)
def test_the_tokens_of_one(
    six_layers: EngineConfig, six_layers_answers: list[list[int]], sizes: dict[str, int]
) -> None:
    runner, changed = spread(six_layers, **sizes)
    try:
        assert drive(runner, changed) == six_layers_answers
    finally:
        runner.close()


@pytest.mark.parametrize("sizes", [{"tp": 2, "ep": 2}, {"tp": 4, "ep": 4, "dcp": 4}], ids=str)
def test_experts_and_positions_spread_give_the_tokens_of_one(
    eight_experts: EngineConfig, sizes: dict[str, int]
) -> None:
    runner, changed = spread(eight_experts, **sizes)
    try:
        assert runner.cache.block_tokens == BLOCK * sizes.get("dcp", 1)
        assert drive(runner, changed) == drive(whole(eight_experts), eight_experts)
    finally:
        runner.close()


def test_replicas_share_the_experts_and_give_the_tokens_of_one(eight_experts: EngineConfig) -> None:
    """Each has requests of its own, at its own pace: the second has fewer, and then nothing to compute."""
    runner, changed = spread(eight_experts, dp=2, ep=2)
    first, second = Conductor(runner).replicas
    with ThreadPoolExecutor(2) as pool:
        long = pool.submit(drive, first, changed)
        short = pool.submit(drive, second, changed, LENGTHS[:3])
        assert long.result(60) == drive(whole(eight_experts), eight_experts)
        assert short.result(60) == drive(whole(eight_experts), eight_experts, LENGTHS[:3])
    first.close()
    assert second.run(Batch((ScheduledRequest(request([1, 2]), 0, 2, True),))).sampled[0] is not None
    second.close()
    with pytest.raises(EngineError, match="closed"):
        second.run(Batch(()))


def test_it_says_what_it_is(six_layers: EngineConfig) -> None:
    runner, _ = spread(six_layers, tp=2, pp=2)
    try:
        # Six layers, keys and values, two heads of 16 floats of 4 bytes, 4 tokens: over all ranks.
        assert runner.cache.bytes_per_block == 6 * 2 * 2 * 16 * 4 * BLOCK
        assert runner.cache.num_blocks == 2**20 // (runner.cache.bytes_per_block // 4)
        assert runner.devices == ("cpu:0",)
    finally:
        runner.close()


def test_ranks_score_a_prompt_as_one_does(six_layers: EngineConfig) -> None:
    one, (runner, _) = TorchRunner(load_model(six_layers), six_layers, MonotonicClock()), spread(six_layers, tp=2)
    step = ScheduledRequest(request([7, 6, 5, 9], temperature=0, prompt_logprobs=2), 0, 4, True, scored=3)
    (wanted,), (found,) = (computing.run(Batch((step,))).scores for computing in (one, runner))
    runner.close()
    assert [score.chosen for score in found] == pytest.approx([score.chosen for score in wanted], abs=1e-4)
    assert [[token for token, _ in score.top] for score in found] == [[t for t, _ in score.top] for score in wanted]


def test_a_chunk_that_does_not_sample_answers_none_and_a_closed_runner_refuses(six_layers: EngineConfig) -> None:
    runner, _ = spread(six_layers, tp=2)
    quiet = Batch((ScheduledRequest(request([1, 2, 3]), 0, 3, False),))
    assert runner.run(quiet).sampled == [None]
    both = Batch((ScheduledRequest(request([7], range(3)), 0, 1, True), ScheduledRequest(request([5, 6]), 0, 1, False)))
    sampled = runner.run(both)
    assert [token is None for token in sampled.sampled] == [False, True]
    assert sampled.start < sampled.end
    runner.start(quiet)
    with pytest.raises(EngineError, match="1 batches are under way"):
        runner.start(quiet)
    runner.close()
    runner.close()
    with pytest.raises(EngineError, match="closed"):
        runner.run(quiet)


def test_without_a_size_the_pools_are_what_all_sequences_could_fill(six_layers: EngineConfig) -> None:
    free = six_layers.model_copy(update={"kv": KvConfig(block_tokens=BLOCK), "max_model_len": 100})
    runner, _ = spread(free, tp=4, dcp=2)
    try:
        assert runner.cache.num_blocks == 6 * 13 + 1, "thirteen blocks of 8 tokens for each of six sequences, and one"
    finally:
        runner.close()


def test_a_layout_that_breaks_a_rule_starts_nothing(six_layers: EngineConfig) -> None:
    def hire(names: Sequence[str], memory: SharedMemory) -> Any:
        raise AssertionError("a rank was started")

    with pytest.raises(ConfigError, match=r"tp=3 is not allowed: attention heads divide over tp.*tp may be 1, 2, 4"):
        spread(six_layers, hire, tp=3)
    with pytest.raises(ConfigError, match=r"layers divide over pp.*pp may be 1, 2, 3, 6"):
        spread(six_layers, hire, pp=4)


def test_a_rank_that_cannot_load_says_why(six_layers: EngineConfig, tmp_path: Path) -> None:
    opened = open_model(six_layers)
    broken = six_layers.model_copy(update={"layout": ParallelLayout(tp=2), "model": str(tmp_path)})
    with pytest.raises(ModelError, match=r"rank 0 \(replica 0, stage 0, tensor 0\): .*model.safetensors"):
        ParallelRunner(opened, broken, FakeClock(), hire=ThreadCrew)


def test_ranks_that_cannot_be_started_leave_no_memory_behind(six_layers: EngineConfig) -> None:
    held: list[SharedMemory] = []

    def hire(names: Sequence[str], memory: SharedMemory) -> Any:
        held.append(memory)
        raise EngineError("A rank could not be started.")

    with pytest.raises(EngineError, match="could not be started"):
        spread(six_layers, hire, tp=2)
    assert [memory.fd for memory in held] == [-1]
