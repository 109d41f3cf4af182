"""Ranks that compute together give the tokens of one, and the runner over them keeps the port's promises."""

from __future__ import annotations

import os
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from energyopt.core.clock import FakeClock, MonotonicClock
from energyopt.core.config import EngineConfig, KvConfig, ParallelLayout, TierConfig
from energyopt.core.errors import ConfigError, EngineError, ModelError
from energyopt.core.units import Bytes, Seconds
from engine.batch import Batch, Runner, ScheduledRequest
from engine.flights import as_pipeline
from engine.kv.configured import cache_for
from engine.kv.coordinator import KvCoordinator
from engine.models import load_model, open_model
from engine.offload import mover_for, tiers_for
from engine.parallel.fake import ThreadCrew
from engine.parallel.launcher import Launcher
from engine.parallel.memory import SharedMemory
from engine.parallel.replicas import Conductor
from engine.parallel.runner import ParallelRunner
from engine.request import Request, SamplingParams
from engine.runner import TorchRunner
from engine.scheduler import Scheduler
from engine.step import StepLoop

BLOCK = 4
LENGTHS = (1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 40)
"""Below, at and above every boundary of blocks of 4 that up to 4 ranks split."""


def drive(
    runner: Runner,
    config: EngineConfig,
    lengths: Sequence[int] = LENGTHS,
    new: int = 6,
    cache: KvCoordinator | None = None,
) -> list[list[int]]:
    """Greedy continuations of one prompt a length; half of the prompts share a prefix."""
    depth = as_pipeline(runner).depth
    cache = cache or cache_for(config, runner.cache)
    scheduler = Scheduler(config, cache, max_model_len=512, depth=depth)
    loop = StepLoop(scheduler, runner, lambda settled, record: None)
    params = SamplingParams(max_tokens=new, temperature=0, ignore_eos=True)
    prompts = [tuple((7 * at + (number % 2) * number) % 256 for at in range(n)) for number, n in enumerate(lengths)]
    requests = [Request(f"r{i}", prompt, params, Seconds(float(i))) for i, prompt in enumerate(prompts)]
    for request in requests:
        scheduler.add(request)
    while loop.step() or scheduler.has_work or scheduler.cache.busy:
        scheduler.check_integrity()
    return [request.output for request in requests]


def whole(config: EngineConfig) -> TorchRunner:
    return TorchRunner(load_model(config), config, MonotonicClock())


def spread(config: EngineConfig, hire: Any = ThreadCrew, **sizes: int) -> tuple[ParallelRunner, EngineConfig]:
    changed = config.model_copy(update={"layout": ParallelLayout(**sizes)})
    return ParallelRunner(open_model(changed), changed, MonotonicClock(), hire=hire), changed


def request(prompt: Sequence[int], blocks: Sequence[int] = range(40), **params: Any) -> Request:
    made = Request("r", tuple(prompt), SamplingParams(**params), Seconds(0.0))
    made.block_ids = list(blocks)
    return made


@pytest.fixture(scope="module")
def config(tiny_saver: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    """Six layers, four heads of two key heads, a vocabulary that no number of ranks divides."""
    directory = tmp_path_factory.mktemp("six-layers")
    tiny_saver(directory, num_hidden_layers=6, vocab_size=257)
    return EngineConfig(
        model=str(directory),
        dtype="float32",
        device="cpu",
        threads=1,
        max_num_seqs=6,
        max_num_batched_tokens=24,
        kv=KvConfig(block_tokens=BLOCK, memory_bytes=Bytes(2**20)),
    )


@pytest.fixture(scope="module")
def wanted(config: EngineConfig) -> list[list[int]]:
    return drive(whole(config), config)


@pytest.fixture(scope="module")
def sparse(config: EngineConfig, tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    """Two layers of eight experts, one key head: what lets experts, positions and replicas be spread."""
    directory = tmp_path_factory.mktemp("eight-experts")
    torch.manual_seed(1)
    shape: dict[str, Any] = {
        "vocab_size": 257,
        "hidden_size": 64,
        "intermediate_size": 96,
        "head_dim": 16,
        "initializer_range": 0.2,
    }
    heads: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1}
    experts: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape, **heads, **experts, pad_token_id=0)).save_pretrained(directory)
    shutil.copy(Path(config.model) / "tokenizer.json", directory)
    return config.model_copy(update={"model": str(directory)})


@pytest.mark.parametrize("sizes", [{"tp": 2}, {"pp": 3}, {"tp": 2, "pp": 2}, {"tp": 4, "dcp": 2}], ids=str)
def test_the_tokens_of_one(config: EngineConfig, wanted: list[list[int]], sizes: dict[str, int]) -> None:
    runner, changed = spread(config, **sizes)
    try:
        assert drive(runner, changed) == wanted
    finally:
        runner.close()


@pytest.mark.parametrize("sizes", [{"tp": 2, "ep": 2}, {"tp": 4, "ep": 4, "dcp": 4}], ids=str)
def test_experts_and_positions_spread_give_the_tokens_of_one(sparse: EngineConfig, sizes: dict[str, int]) -> None:
    runner, changed = spread(sparse, **sizes)
    try:
        assert runner.cache.block_tokens == BLOCK * sizes.get("dcp", 1)
        assert drive(runner, changed) == drive(whole(sparse), sparse)
    finally:
        runner.close()


def test_replicas_share_the_experts_and_give_the_tokens_of_one(sparse: EngineConfig) -> None:
    """Each has requests of its own, at its own pace: the second has fewer, and then nothing to compute."""
    runner, changed = spread(sparse, dp=2, ep=2)
    first, second = Conductor(runner).replicas
    with ThreadPoolExecutor(2) as pool:
        long = pool.submit(drive, first, changed)
        short = pool.submit(drive, second, changed, LENGTHS[:3])
        assert long.result(60) == drive(whole(sparse), sparse)
        assert short.result(60) == drive(whole(sparse), sparse, LENGTHS[:3])
    first.close()
    assert second.run(Batch((ScheduledRequest(request([1, 2]), 0, 2, True),))).sampled[0] is not None
    second.close()
    with pytest.raises(EngineError, match="closed"):
        second.run(Batch(()))


def test_it_says_what_it_is(config: EngineConfig) -> None:
    runner, _ = spread(config, tp=2, pp=2)
    try:
        # Six layers, keys and values, two heads of 16 floats of 4 bytes, 4 tokens: over all ranks.
        assert runner.cache.bytes_per_block == 6 * 2 * 2 * 16 * 4 * BLOCK
        assert runner.cache.num_blocks == 2**20 // (runner.cache.bytes_per_block // 4)
        assert runner.devices == ("cpu:0",)
    finally:
        runner.close()


def test_a_chunk_that_does_not_sample_answers_none_and_a_closed_runner_refuses(config: EngineConfig) -> None:
    runner, _ = spread(config, tp=2)
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


def test_without_a_size_the_pools_are_what_all_sequences_could_fill(config: EngineConfig) -> None:
    free = config.model_copy(update={"kv": KvConfig(block_tokens=BLOCK), "max_model_len": 100})
    runner, _ = spread(free, tp=4, dcp=2)
    try:
        assert runner.cache.num_blocks == 6 * 13 + 1, "thirteen blocks of 8 tokens for each of six sequences, and one"
    finally:
        runner.close()


@pytest.mark.parametrize("sizes", [{"tp": 2, "pp": 3}, {"tp": 4}], ids=str)
def test_blocks_over_ranks_are_moved_as_those_of_one(config: EngineConfig, sizes: dict[str, int]) -> None:
    """So tiers keep them, and engines of other layouts take them over."""
    loaded = load_model(config)
    one = TorchRunner(loaded, config, MonotonicClock())
    runner, changed = spread(config, **sizes)
    try:
        movers = mover_for(config, loaded, one), mover_for(changed, open_model(changed), runner)
        assert len({mover.layout for mover in movers}) == 1
        assert one.cache.bytes_per_block == movers[0].block_bytes == movers[1].block_bytes
        prompt = list(range(3 * BLOCK))
        for computing in (one, runner):
            computing.run(Batch((ScheduledRequest(request(prompt, range(5)), 0, len(prompt), True),)))
        parts = [[mover.allocate(mover.block_bytes) for _ in range(3)] for mover in movers]
        for mover, views in zip(movers, parts, strict=True):
            mover.read([2, 0, 1], views)
        for ours, theirs in zip(*parts, strict=True):
            assert np.allclose(np.frombuffer(ours, np.float32), np.frombuffer(theirs, np.float32), atol=1e-5)
            assert np.frombuffer(ours, np.float32).any()
        movers[1].write([8, 6, 7], parts[0])  # what one rank computed, into the pools of several
        tokens = []
        for blocks in (range(5), (6, 7, 8, 9)):
            step = ScheduledRequest(request([*prompt, 9], blocks, temperature=0, logprobs=0), len(prompt), 1, True)
            (sampled,) = runner.run(Batch((step,))).sampled
            assert sampled is not None
            tokens.append(sampled.token)
        assert len(set(tokens)) == 1
    finally:
        runner.close()


def test_what_cannot_be_moved_whole_is_refused(sparse: EngineConfig) -> None:
    for sizes, words in (({"tp": 2, "dcp": 2}, "dcp = 2"), ({"dp": 2, "ep": 2}, "one cache")):
        runner, changed = spread(sparse, **sizes)
        try:
            with pytest.raises(ConfigError, match=words):
                mover_for(changed, open_model(changed), runner)
        finally:
            runner.close()


def test_prefixes_come_back_from_a_tier_into_all_ranks(config: EngineConfig, wanted: list[list[int]]) -> None:
    tier = TierConfig(kind="host", bytes_per_host=Bytes(2**22))
    kept = config.model_copy(update={"kv": config.kv.model_copy(update={"tiers": (tier,)})})
    runner, changed = spread(kept, tp=2)
    tiers = tiers_for(changed, open_model(changed), runner, MonotonicClock())
    assert tiers is not None
    cache = cache_for(changed, runner.cache, tiers)
    assert drive(runner, changed, cache=cache) == wanted
    cache.reset("device")
    assert drive(runner, changed, cache=cache) == wanted
    assert sum(count.loads for count in cache.counts()) > 0
    cache.close()
    runner.close()


def test_a_layout_that_breaks_a_rule_starts_nothing(config: EngineConfig) -> None:
    def hire(names: Sequence[str], memory: SharedMemory) -> Any:
        raise AssertionError("a rank was started")

    with pytest.raises(ConfigError, match=r"tp=3 is not allowed: attention heads divide over tp.*tp may be 1, 2, 4"):
        spread(config, hire, tp=3)
    with pytest.raises(ConfigError, match=r"layers divide over pp.*pp may be 1, 2, 3, 6"):
        spread(config, hire, pp=4)


def test_a_rank_that_cannot_load_says_why(config: EngineConfig, tmp_path: Path) -> None:
    opened = open_model(config)
    broken = config.model_copy(update={"layout": ParallelLayout(tp=2), "model": str(tmp_path)})
    with pytest.raises(ModelError, match=r"rank 0 \(replica 0, stage 0, tensor 0\): .*model.safetensors"):
        ParallelRunner(opened, broken, FakeClock(), hire=ThreadCrew)


def test_ranks_that_cannot_be_started_leave_no_memory_behind(config: EngineConfig) -> None:
    held: list[SharedMemory] = []

    def hire(names: Sequence[str], memory: SharedMemory) -> Any:
        held.append(memory)
        raise EngineError("A rank could not be started.")

    with pytest.raises(EngineError, match="could not be started"):
        spread(config, hire, tp=2)
    assert [memory.fd for memory in held] == [-1]


class Hired:
    """Starts processes and remembers their ids."""

    def __init__(self) -> None:
        self.pids: tuple[int, ...] = ()

    def __call__(self, names: Sequence[str], memory: SharedMemory) -> Launcher:
        launcher = Launcher(names, memory)
        self.pids = launcher.pids
        return launcher


@pytest.fixture(scope="module")
def running(config: EngineConfig) -> Iterator[tuple[ParallelRunner, EngineConfig, Hired]]:
    """Two processes, for the tests that need real ones; the last of them kills one."""
    hired = Hired()
    runner, changed = spread(config, hired, tp=2)
    yield runner, changed, hired
    runner.close()


def test_processes_give_the_tokens_of_one(
    running: tuple[ParallelRunner, EngineConfig, Hired], wanted: list[list[int]]
) -> None:
    runner, changed, hired = running
    assert len(hired.pids) == 2
    assert drive(runner, changed) == wanted


def test_a_killed_process_ends_the_engine_within_seconds(
    running: tuple[ParallelRunner, EngineConfig, Hired],
) -> None:
    runner, changed, hired = running
    os.kill(hired.pids[1], signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(EngineError, match=r"rank 1 .* was killed by SIGKILL"):
        drive(runner, changed)
    runner.close()
    assert time.monotonic() - start < 5
    assert not any(Path(f"/proc/{pid}").exists() for pid in hired.pids)
