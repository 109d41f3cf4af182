"""The runner keeps its port's promises, and the tokens are the same whatever the scheduler does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from energyopt.core.clock import FakeClock, MonotonicClock
from energyopt.core.config import EngineConfig
from energyopt.core.errors import ConfigError, EngineError, OutOfMemoryError
from energyopt.core.units import Seconds
from engine.batch import Batch, Runner, ScheduledRequest
from engine.kv.configured import cache_for
from engine.kv.coordinator import KvCoordinator
from engine.models import LoadedModel, load_model
from engine.request import Request, SamplingParams
from engine.runner import TorchRunner
from engine.scheduler import Scheduler
from engine.step import StepLoop

Driver = Callable[..., list[list[int]]]
PROMPTS = [list(range(seed, seed + length)) for seed, length in ((3, 30), (3, 41), (90, 5), (3, 30), (7, 60), (200, 1))]


def changed(config: EngineConfig, *, kv: dict[str, Any] | None = None, **changes: Any) -> EngineConfig:
    data = config.model_dump()
    return EngineConfig.model_validate({**data, **changes, "kv": {**data["kv"], **(kv or {})}})


def request(prompt: Sequence[int], blocks: Sequence[int] = range(40), **params: Any) -> Request:
    made = Request("r", tuple(prompt), SamplingParams(**params), Seconds(0.0))
    made.block_ids = list(blocks)
    return made


def whole(made: Request, sample: bool = True) -> Batch:
    return Batch((ScheduledRequest(made, 0, made.num_tokens, sample),))


def test_it_says_what_it_is(tiny: LoadedModel, tiny_config: EngineConfig) -> None:
    runner: Runner = TorchRunner(tiny, tiny_config, FakeClock())
    # Two layers, keys and values, two heads of 16 floats of 4 bytes, 4 tokens.
    assert runner.cache.bytes_per_block == 2 * 2 * 2 * 16 * 4 * 4
    assert runner.cache.num_blocks == 2**20 // runner.cache.bytes_per_block
    assert runner.cache.block_tokens == 4
    assert runner.devices == ("cpu:0",)
    assert TorchRunner(tiny, tiny_config, FakeClock()).dtype is torch.float32


def test_the_clock_stamps_a_step(tiny: LoadedModel, tiny_config: EngineConfig) -> None:
    clock = MonotonicClock()
    before = clock.now()
    result = TorchRunner(tiny, tiny_config, clock).run(whole(request([1, 2, 3])))
    assert before <= result.start < result.end <= clock.now()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_chunk_that_does_not_sample_answers_none(tiny_config: EngineConfig, dtype: str) -> None:
    config = changed(tiny_config, dtype=dtype)
    runner = TorchRunner(load_model(config), config, FakeClock())
    assert runner.run(whole(request([1, 2, 3]), sample=False)).sampled == [None]
    first, second = request([5, 6], range(3)), request([7], range(3, 6), temperature=0)
    mixed = Batch((ScheduledRequest(second, 0, 1, True), ScheduledRequest(first, 0, 1, False)))
    sampled = runner.run(mixed).sampled
    assert sampled[0] is not None
    assert sampled[1] is None


def test_it_computes_on_another_thread_with_its_own_thread_count(tiny: LoadedModel, tiny_config: EngineConfig) -> None:
    runner = TorchRunner(tiny, changed(tiny_config, threads=2), FakeClock())
    seen: list[int] = []

    def work() -> None:
        runner.run(whole(request([1, 2, 3])))
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.set_num_threads(1)
    assert seen == [2]


def test_a_closed_runner_refuses_and_closes_twice(tiny: LoadedModel, tiny_config: EngineConfig) -> None:
    runner = TorchRunner(tiny, tiny_config, FakeClock())
    runner.close()
    runner.close()
    with pytest.raises(EngineError, match="closed"):
        runner.run(whole(request([1])))


def test_a_pool_beyond_memory_is_out_of_memory(tiny: LoadedModel, tiny_config: EngineConfig) -> None:
    with pytest.raises(OutOfMemoryError, match="did not fit"):
        TorchRunner(tiny, changed(tiny_config, kv={"memory_bytes": 2**50}), FakeClock())


def test_a_pool_below_one_block_is_a_configuration_error(tiny: LoadedModel, tiny_config: EngineConfig) -> None:
    with pytest.raises(ConfigError, match="one block of 4 tokens takes 2048 bytes"):
        TorchRunner(tiny, changed(tiny_config, kv={"memory_bytes": 2047}), FakeClock())


def test_without_a_size_the_pool_is_what_all_sequences_could_fill(tiny: LoadedModel, tiny_config: EngineConfig) -> None:
    config = changed(tiny_config, max_num_seqs=3, kv={"memory_bytes": None})
    assert TorchRunner(tiny, config, FakeClock()).cache.num_blocks == 3 * tiny.max_model_len // 4


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried ..."),
    ],
    ids=["cuda", "python", "cpu"],
)
def test_memory_that_runs_out_in_a_step_is_typed(
    tiny: LoadedModel, tiny_config: EngineConfig, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    runner = TorchRunner(tiny, tiny_config, FakeClock())
    monkeypatch.setattr(tiny.model, "forward", fail)
    with pytest.raises(OutOfMemoryError, match="A step of 3 tokens did not fit"):
        runner.run(whole(request([1, 2, 3])))


def test_another_failure_stays_what_it_is(
    tiny: LoadedModel, tiny_config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("shapes differ")

    runner = TorchRunner(tiny, tiny_config, FakeClock())
    monkeypatch.setattr(tiny.model, "forward", fail)
    with pytest.raises(RuntimeError, match="shapes differ"):
        runner.run(whole(request([1, 2, 3])))


@pytest.mark.parametrize(
    "changes",
    [
        {"kv": {"prefix_caching": False}},
        {"kv": {"block_tokens": 1}},
        {"kv": {"block_tokens": 32}},
        {"max_num_batched_tokens": 8, "max_num_seqs": 8},
        {"max_num_seqs": 1},
        {"kv": {"memory_bytes": 2048 * 28}},
        {"kernels": "reference"},
    ],
    ids=["no prefix cache", "tiny blocks", "large blocks", "small chunks", "one at a time", "preempted", "reference"],
)
def test_the_same_tokens(tiny: LoadedModel, tiny_config: EngineConfig, driver: Driver, changes: dict[str, Any]) -> None:
    wanted = driver(tiny, tiny_config, PROMPTS, 30)
    assert len({tuple(tokens) for tokens in wanted}) == len(PROMPTS) - 1  # two prompts are equal
    config = changed(tiny_config, **changes)
    loaded = load_model(config) if "kernels" in changes else tiny
    assert driver(loaded, config, PROMPTS, 30) == wanted


def test_preemption_does_not_change_what_a_seed_draws(tiny: LoadedModel, tiny_config: EngineConfig) -> None:
    def drawn(blocks: int) -> tuple[list[list[int]], int]:
        config = changed(tiny_config, kv={"memory_bytes": 2048 * blocks})
        runner = TorchRunner(tiny, config, FakeClock())
        scheduler = Scheduler(config, KvCoordinator(runner.cache), max_model_len=tiny.max_model_len)
        loop = StepLoop(scheduler, runner, lambda settled, record: None)
        requests = [
            Request(f"r{i}", tuple(prompt), SamplingParams(max_tokens=30, seed=i, top_p=0.9), Seconds(float(i)))
            for i, prompt in enumerate(PROMPTS)
        ]
        for made in requests:
            scheduler.add(made)
        while loop.step():
            pass
        return [made.output for made in requests], sum(made.num_preemptions for made in requests)

    roomy, none = drawn(400)
    tight, some = drawn(28)
    assert none == 0
    assert some > 0
    assert roomy == tight


def test_loading_a_config_twice_gives_the_same_text(tiny_config: EngineConfig, driver: Driver) -> None:
    config = changed(tiny_config, dtype="auto", kv={"memory_bytes": 2**20})
    first, second = (driver(load_model(config), config, PROMPTS, 20) for _ in range(2))
    assert first == second


def test_a_hit_inside_a_block_copies_it_and_leaves_the_tokens_as_they_are(
    tiny: LoadedModel, tiny_config: EngineConfig, driver: Driver
) -> None:
    """The owner of a shared block goes on writing behind what is shared; who hits it writes into a copy."""
    prompt = list(range(3, 40))
    prompts = [prompt, prompt, [*prompt, 7, 8, 9], prompt[:30], [*prompt[:36], 99]]
    wanted = driver(tiny, changed(tiny_config, kv={"prefix_caching": False}), prompts, 12)
    config = changed(tiny_config, kv={"block_tokens": 16, "match_tokens": 2}, max_num_seqs=1)
    runner = TorchRunner(tiny, config, FakeClock())
    scheduler = Scheduler(config, cache_for(config, runner.cache), max_model_len=tiny.max_model_len)
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    requests = [Request(f"r{i}", tuple(one), params, Seconds(float(i))) for i, one in enumerate(prompts)]
    for made in requests:
        scheduler.add(made)
    copies = 0
    while (batch := scheduler.schedule()) is not None:
        copies += len(batch.copies)
        scheduler.settle(batch, runner.run(batch))
        scheduler.check_integrity()
    assert [made.output for made in requests] == wanted
    assert [made.cached_tokens for made in requests] == [0, 36, 36, 16, 36], "30 tokens do not name a block of 32"
    assert copies == 3
