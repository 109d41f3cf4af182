"""The running engine over lower tiers: it wakes, it sleeps instead of spinning, it resets, it closes them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator

import pytest

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig, KvConfig
from energyopt.core.errors import ConfigError, EngineDeadError
from energyopt.core.records import RequestRecord
from engine.fake import FakeRunner, FakeTokenizer
from engine.front import EngineFront
from engine.kv.fake_tiers import FakeTiers
from engine.output import Output
from engine.request import SamplingParams

PROMPT = list(range(100, 164))
PARAMS = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)


class Running:
    """An engine over fake tiers whose first load fails after ``delay`` polls."""

    def __init__(self, delay: int = 30) -> None:
        runner = FakeRunner()
        self.records: list[RequestRecord] = []
        self.tiers = FakeTiers(
            {"host": None},
            read=runner.block,
            write=runner.set_block,
            delays=itertools.repeat(delay),
            failures=itertools.chain([True], itertools.repeat(False)),
        )
        self.front = EngineFront(
            EngineConfig(model="fake"),
            runner,
            FakeTokenizer(),
            max_model_len=512,
            clock=MonotonicClock(),
            tiers=self.tiers,
            on_request=self.records.append,
        )

    def until_stored(self) -> None:
        deadline = time.monotonic() + 20
        while self.tiers.running:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    async def ask(self, name: str) -> tuple[int, ...]:
        outputs: AsyncIterator[Output] = self.front.generate(PROMPT, PARAMS, request_id=name)
        return tuple([token async for output in outputs for token in output.token_ids])


async def test_a_failed_load_wakes_an_idle_engine() -> None:
    """local-inference-lab#191: with no other traffic the request that had to compute was never scheduled again."""
    engine = Running()
    first = await engine.ask("first")
    await asyncio.to_thread(engine.until_stored)  # an idle engine still takes note of stores that end
    assert await engine.front.reset_prefix_cache("device") == 4
    again = await asyncio.wait_for(engine.ask("again"), 20)
    assert again == first
    stats = engine.front.stats()
    assert (stats.load_failures, stats.loading, stats.waiting) == (1, 0, 0)
    assert engine.tiers.waited > 0, "the loop sleeps while only a tier can go on"
    engine.front.close()
    assert engine.tiers.closed


async def test_hits_by_source_reach_records_and_stats() -> None:
    engine = Running(delay=0)
    for name in ("compute", "device", "fails", "host"):
        if name in ("fails", "host"):
            await engine.front.reset_prefix_cache("device")
        await engine.ask(name)
    assert [dict(record.cached_by_tier) for record in engine.records] == [{}, {"device": 48}, {}, {"host": 48}]
    stats = engine.front.stats()
    assert dict(stats.prompt_tokens_by_source) == {"local_compute": 160, "device": 48, "host": 48}
    assert sum(stats.prompt_tokens_by_source.values()) == stats.prompt_tokens == 256
    engine.front.close()


async def test_resets_are_refused_or_end_with_the_engine() -> None:
    engine = Running()
    with pytest.raises(ConfigError, match="no KV tier 'tape'"):
        await engine.front.reset_prefix_cache("tape")
    engine.front.close()
    with pytest.raises(EngineDeadError):
        await engine.front.reset_prefix_cache()


def test_the_cache_settings_are_checked_against_the_runner() -> None:
    config = EngineConfig(model="fake", kv=KvConfig(block_tokens=8, retention_interval=8))
    with pytest.raises(ConfigError, match="retention_interval = 8 is not allowed: it must be 0 or a multiple of 16"):
        EngineFront(config, FakeRunner(), FakeTokenizer(), max_model_len=64, clock=MonotonicClock())


def test_the_effective_settings_are_in_the_stats() -> None:
    config = EngineConfig(model="fake", kv=KvConfig(match_tokens=4, retention_interval=32))
    front = EngineFront(config, FakeRunner(), FakeTokenizer(), max_model_len=64, clock=MonotonicClock())
    assert (front.stats().min_hit_tokens, front.stats().retention_interval) == (4, 32)
    front.close()
