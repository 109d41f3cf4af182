"""Two engines that hand over by way of a real Mooncake pool."""

from __future__ import annotations

import asyncio
from typing import Any

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig, KvConfig, KvTransferConfig
from energyopt.core.units import Bytes
from engine.batch import CacheShape
from engine.disagg.assembly import open_exchange
from engine.disagg.params import Lend, Transfer
from engine.fake import FakeRunner, FakeTokenizer
from engine.fake_mover import FakeMover
from engine.front import EngineFront
from engine.output import Output
from engine.request import SamplingParams

PROMPT = [97 + number % 26 for number in range(203)]


def engine(pool: str | None) -> EngineFront:
    runner, clock = FakeRunner(CacheShape(64, 16, Bytes(128))), MonotonicClock()
    transfer = KvTransferConfig(transport="mooncake", pool=pool, pool_bytes=Bytes(1 << 24)) if pool else None
    return EngineFront(
        EngineConfig(model="fake", kv=KvConfig(block_tokens=16)),
        runner,
        FakeTokenizer(),
        max_model_len=1024,
        clock=clock,
        remote=None if transfer is None else open_exchange(transfer, FakeMover(runner), clock),
    )


async def ask(front: EngineFront, transfer: Transfer | None = None, tokens: int = 8) -> list[Output]:
    params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, transfer=transfer)
    return [output async for output in front.generate(PROMPT, params, request_id=f"{id(transfer)}-{tokens}")]


async def test_two_engines_hand_over_through_the_pool(mooncake_pool: Any) -> None:
    prefill, decode, plain = engine(mooncake_pool.url), engine(mooncake_pool.url), engine(None)
    try:
        expected = "".join(output.text for output in await ask(plain))
        (lent,) = await ask(prefill, Lend(), 1)
        assert lent.offer is not None
        got = await ask(decode, lent.offer)
        assert "".join(output.text for output in got) == expected
        record = got[-1].record
        assert record is not None
        assert record.cached_by_tier == {"remote": len(PROMPT) - 1}
        for _ in range(500):
            if not prefill.stats().blocks_used:
                break
            await asyncio.sleep(0.01)
        assert prefill.stats().blocks_used == 0
    finally:
        for front in (prefill, decode, plain):
            front.close()
