"""Tiers under pressure: eviction, preemption, failed loads, aborts, many prompts. Text never changes; all ends."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from engine.kv.block_store import Got
from engine.kv.disk import DiskStore
from engine.kv.host import HostTier
from engine.mover import TorchMover
from engine.ports import EngineStats
from engine.request import SamplingParams

if TYPE_CHECKING:
    from tests.engine.kv.conftest import WholeEngine

BLOCK_BYTES = 2 * 2 * 16 * 2 * 8 * 4
"""Of the tiny model: layers x sides x tokens x heads x width x float32."""

Start = Callable[..., "WholeEngine"]


def _prompts(count: int, seed: int, longest: int = 96) -> list[list[int]]:
    """Prompts of a few families, so that they share heads of every length."""
    chance = random.Random(seed)
    families = [[chance.randrange(30, 120) for _ in range(longest)] for _ in range(12)]
    prompts = []
    for _ in range(count):
        family = chance.choice(families)
        cut = chance.randrange(8, longest - 8)
        prompts.append(family[:cut] + [chance.randrange(30, 120) for _ in range(8)])
    return prompts


async def _all(engine: WholeEngine, prompts: Sequence[list[int]], params: SamplingParams, at_once: int) -> list[str]:
    places = asyncio.Semaphore(at_once)

    async def one(prompt: list[int]) -> str:
        async with places:
            return await engine.generate(prompt, params)

    return list(await asyncio.gather(*(one(prompt) for prompt in prompts)))


def _texts(engine: WholeEngine, prompts: Sequence[list[int]], tokens: int = 4, at_once: int = 32) -> list[str]:
    return asyncio.run(_all(engine, prompts, SamplingParams(max_tokens=tokens, temperature=0.0), at_once))


def _tiers(folder: Path, host_blocks: int = 40, disk_blocks: int = 200) -> list[dict[str, object]]:
    return [
        {"kind": "host", "bytes_per_host": host_blocks * BLOCK_BYTES},
        {"kind": "disk", "bytes_per_host": disk_blocks * (BLOCK_BYTES + 4096), "path": str(folder)},
    ]


def _at_rest(engine: WholeEngine) -> EngineStats:
    """The engine's numbers once it has nothing to do; fails if a block stays in use."""
    deadline = time.monotonic() + 10
    while True:
        stats = engine.front.stats()
        left = (stats.running, stats.waiting, stats.loading, stats.blocks_used)
        if not any(left):
            return stats
        assert time.monotonic() < deadline, f"running, waiting, loading, blocks: {left}"
        time.sleep(0.01)


def test_a_thousand_prompts_through_small_tiers(tiny_model: Path, tmp_path: Path, whole_engine: Start) -> None:
    """vLLM #31210, #26329, #45704: the same text with offload on and off; no crash at many prompts; no lost block."""
    prompts = _prompts(1000, seed=1, longest=64)
    plain = whole_engine(str(tiny_model))
    small = whole_engine(str(tiny_model), *_tiers(tmp_path, 20, 60), memory_bytes=20 * BLOCK_BYTES, tier_eviction="arc")
    assert _texts(small, prompts, tokens=2) == _texts(plain, prompts, tokens=2)
    small.settle()
    for tier in ("host", "disk"):
        counts = small.count(tier)
        assert counts.loads > 0
        assert counts.evictions > 0
        assert counts.failures.keys() <= {"missing", "backlog"}, "what was evicted under a load may be missing"
    stats = _at_rest(small)
    assert sum(stats.prompt_tokens_by_source.values()) == stats.prompt_tokens


def test_preemption_while_blocks_are_loaded_and_stored(tiny_model: Path, tmp_path: Path, whole_engine: Start) -> None:
    """vLLM #46014, #45388: a request preempted and admitted again with offload; waiting requests always move on."""
    prompts = _prompts(16, seed=2)
    plain = whole_engine(str(tiny_model))
    small = whole_engine(str(tiny_model), *_tiers(tmp_path), memory_bytes=16 * BLOCK_BYTES)
    assert _texts(small, prompts, tokens=40) == _texts(plain, prompts, tokens=40)
    assert small.front.stats().preemptions > 0
    assert small.count("host").loads > 0


def test_every_second_load_fails(
    tiny_model: Path, tmp_path: Path, whole_engine: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM #49250: a failed load is computed, and the text is the same."""
    chance = random.Random(5)
    real = DiskStore.get

    def unreliable(store: DiskStore, keys: Sequence[bytes], into: Sequence[memoryview]) -> Sequence[Got]:
        ends = list(real(store, keys, into))
        if chance.random() < 0.5:
            into[0][:] = bytes(chance.randrange(256) for _ in range(len(into[0])))
            ends[0] = Got.CORRUPT
        return ends

    monkeypatch.setattr(DiskStore, "get", unreliable)
    prompts = _prompts(80, seed=3)
    plain = whole_engine(str(tiny_model))
    (disk,) = _tiers(tmp_path)[1:]
    small = whole_engine(str(tiny_model), disk, memory_bytes=24 * BLOCK_BYTES)
    assert _texts(small, prompts) == _texts(plain, prompts)
    assert _at_rest(small).load_failures > 0
    assert small.count("disk").failures["corrupt"] > 0


def test_one_failed_load_and_no_other_traffic(
    tiny_model: Path, whole_engine: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """local-inference-lab#191: an engine whose only request failed to load wakes up and computes it."""
    engine = whole_engine(str(tiny_model), {"kind": "host", "bytes_per_host": 1 << 20})
    (prompt,) = _prompts(1, seed=4)
    text = engine.ask(prompt)
    engine.settle()
    engine.reset("device")

    def broken(mover: TorchMover, slots: Sequence[int], source: Sequence[memoryview]) -> None:
        raise OSError("the copy failed, as it was told to")

    monkeypatch.setattr(TorchMover, "write", broken)
    assert engine.ask(prompt) == text
    assert engine.front.stats().load_failures == 1
    monkeypatch.undo()
    engine.reset("device")
    assert engine.ask(prompt) == text
    assert engine.records[-1].cached_tokens


def test_requests_aborted_while_they_load(tiny_model: Path, tmp_path: Path, whole_engine: Start) -> None:
    """asc#7871: counters stay monotone, nothing is lost, and who stays gets the same text."""
    prompts = _prompts(80, seed=6)
    plain = whole_engine(str(tiny_model))
    small = whole_engine(str(tiny_model), *_tiers(tmp_path), memory_bytes=24 * BLOCK_BYTES)
    expected = _texts(plain, prompts)
    _texts(small, prompts)
    small.settle()
    small.reset("device")
    params = SamplingParams(max_tokens=4, temperature=0.0)

    async def some_leave() -> list[str | BaseException]:
        tasks = [asyncio.create_task(small.generate(prompt, params)) for prompt in prompts]
        chance, last = random.Random(7), small.front.stats()
        for task in tasks:
            if chance.random() < 0.5:
                await asyncio.sleep(0.002)
                task.cancel()
            now = small.front.stats()
            assert now.prompt_tokens >= last.prompt_tokens
            assert all(a.loads >= b.loads and a.hits >= b.hits for a, b in zip(now.tiers, last.tiers, strict=True))
            last = now
        return await asyncio.gather(*tasks, return_exceptions=True)

    ends = asyncio.run(some_leave())
    stayed = [(end, text) for end, text in zip(ends, expected, strict=True) if isinstance(end, str)]
    assert 0 < len(stayed) < len(prompts)
    assert all(end == text for end, text in stayed)
    assert _texts(small, prompts[:1]) == expected[:1]
    _at_rest(small)


def test_reset_while_requests_run(tiny_model: Path, tmp_path: Path, whole_engine: Start) -> None:
    prompts = _prompts(60, seed=8)
    plain = whole_engine(str(tiny_model))
    small = whole_engine(str(tiny_model), *_tiers(tmp_path), memory_bytes=24 * BLOCK_BYTES)

    async def with_resets() -> list[str]:
        running = asyncio.create_task(_all(small, prompts, SamplingParams(max_tokens=4, temperature=0.0), 16))
        while not running.done():
            for tier in ("device", "host", "disk"):
                await small.front.reset_prefix_cache(tier)
                await asyncio.sleep(0.01)
        return await running

    assert asyncio.run(with_resets()) == _texts(plain, prompts)


def test_host_memory_does_not_grow(tiny_model: Path, whole_engine: Start) -> None:
    """vLLM #44490: whatever passes through, the host tier keeps its slots and its tables stay as long."""
    engine = whole_engine(str(tiny_model), {"kind": "host", "bytes_per_host": 20 * BLOCK_BYTES})
    assert engine.tiers is not None
    host = engine.tiers._host
    assert isinstance(host, HostTier)
    for seed in range(3):
        _texts(engine, _prompts(60, seed=seed))
        engine.settle()
        host.check_integrity()
        assert host.num_cached <= host.capacity == 20
        assert not host._filling
        assert not engine.tiers._loads
