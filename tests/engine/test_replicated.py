"""A front over several replicas: sessions stay, the rest is spread, and an engine's promises hold for all of them."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import pytest

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig, KvConfig
from energyopt.core.errors import ConfigError, EngineError, RequestError
from energyopt.core.units import Bytes, Joules, Seconds
from engine.batch import Batch, CacheShape, StepResult
from engine.fake import FakeRunner, FakeTokenizer
from engine.front import EngineFront
from engine.idle import SleepCounts
from engine.kv.ports import TierCounts
from engine.parallel.replicas import Conductor
from engine.ports import EngineStats
from engine.replicated import ReplicatedFront, merge_stats
from engine.request import SamplingParams
from engine.speculative.ports import DraftCounts

CONFIG = EngineConfig(model="fake", max_num_seqs=4, max_num_batched_tokens=64, kv=KvConfig(block_tokens=4))
SHAPE = CacheShape(64, 4, Bytes(1))


class FakeRanks:
    """Computes the batches of two replicas in one step, each with a KV of its own. Satisfies ``Computes``."""

    def __init__(self) -> None:
        self.replicas, self.max_scored_tokens = 2, 16
        self.cache, self.devices = SHAPE, ("fake-0",)
        self.rows: list[tuple[int, ...]] = []
        self.closed = 0
        self.fail = False
        self.hold_after: int | None = None  # steps computed before the next one waits for `release`
        self.release = threading.Event()
        self._each = [FakeRunner(SHAPE), FakeRunner(SHAPE)]

    def run_all(self, batches: Sequence[Batch]) -> list[StepResult]:
        if self.fail:
            raise EngineError("A rank is gone.")
        if self.hold_after is not None and len(self.rows) >= self.hold_after:
            self.release.wait(30)
        self.rows.append(tuple(batch.num_tokens for batch in batches))
        results = []
        for runner, batch in zip(self._each, batches, strict=True):
            runner.thread = None  # whoever leads a step computes for all
            results.append(runner.run(batch) if batch.items else StepResult([], Seconds(0.0), Seconds(0.0)))
        return results

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def ranks() -> FakeRanks:
    return FakeRanks()


@pytest.fixture
def front(ranks: FakeRanks) -> Iterator[ReplicatedFront]:
    clock, tokenizer = MonotonicClock(), FakeTokenizer()
    fronts = [
        EngineFront(CONFIG, replica, tokenizer, max_model_len=256, clock=clock) for replica in Conductor(ranks).replicas
    ]
    made = ReplicatedFront(fronts)
    yield made
    made.close()
    assert ranks.closed == 1
    assert not made.alive


async def text(front: ReplicatedFront, name: str, *, session: str | None = None, new: int = 12) -> str:
    params = SamplingParams(max_tokens=new, temperature=0, ignore_eos=True)
    prompt = [ord(letter) for letter in f"prompt {name}"]
    return "".join([output.text async for output in front.generate(prompt, params, request_id=name, session=session)])


async def test_requests_are_spread_and_their_text_is_that_of_one_engine(
    front: ReplicatedFront, ranks: FakeRanks
) -> None:
    alone = EngineFront(CONFIG, FakeRunner(SHAPE), FakeTokenizer(), max_model_len=256, clock=MonotonicClock())
    wanted = [await text(alone, str(n)) for n in range(6)]  # type: ignore[arg-type]
    alone.close()
    ranks.hold_after = 1  # until every request is there: else the first replica may be done before the second begins
    asyncio.get_running_loop().call_later(0.3, ranks.release.set)
    assert await asyncio.gather(*(text(front, str(n)) for n in range(6))) == wanted
    assert any(first and second for first, second in ranks.rows), "the replicas never stepped together"
    stats = front.stats()
    assert stats.output_tokens == 6 * 12
    assert stats.blocks_total == 2 * 64
    assert stats.finished_by_reason == {"length": 6}


async def test_a_session_stays_with_its_replica(front: ReplicatedFront, ranks: FakeRanks) -> None:
    for turn in range(4):
        await text(front, f"turn {turn}", session="a", new=2)
    assert len({(first > 0, second > 0) for first, second in ranks.rows}) == 1


async def test_an_id_in_use_is_refused_and_may_be_used_again(front: ReplicatedFront, ranks: FakeRanks) -> None:
    ranks.hold_after = 1  # the first request is still at work when the second comes, however fast the machine
    params = SamplingParams(max_tokens=200, ignore_eos=True)
    first = front.generate([1, 2, 3], params, request_id="same")
    await anext(aiter(first))
    with pytest.raises(RequestError, match="same"):
        await text(front, "same")
    front.abort("same")
    front.abort("unknown")
    ranks.release.set()
    assert [output.finish_reason async for output in first][-1] == "abort"
    assert await text(front, "same")
    assert await front.reset_prefix_cache() > 0


async def test_a_failed_step_is_every_replicas_error(front: ReplicatedFront, ranks: FakeRanks) -> None:
    ranks.fail = True
    results = await asyncio.gather(*(text(front, str(n)) for n in range(4)), return_exceptions=True)
    assert all(isinstance(result, EngineError) and "A rank is gone" in str(result) for result in results)
    assert not front.alive


def test_events_of_several_caches_are_refused(front: ReplicatedFront) -> None:
    with pytest.raises(ConfigError, match="dp above 1"):
        front.watch_cache(None)
    assert front.block_naming == (4, 4)
    assert merge_stats([front.stats()]) == front.stats()


def test_no_part_speaks_for_the_others() -> None:
    """Guesses, sleeps and tiers are added up too; what one replica does not know, the whole does not."""
    first, second = (
        EngineStats(
            tiers=(TierCounts("host", hits=n, load_seconds=n / 2, failures={"corrupt": n}),),
            drafts=DraftCounts(drafts=n, drafted=3 * n, accepted=n, depth=n, by_place=Counter({0: n})),
            sleep=SleepCounts(n > 1, n, 10.0 * n, Bytes(n), Joules(n) if n > 1 else None, None, 5.0 * n, n),
        )
        for n in (1, 2)
    )
    whole = merge_stats([first, second])
    assert whole.tiers == (TierCounts("host", hits=3, load_seconds=1.5, failures={"corrupt": 3}),)
    assert whole.drafts == DraftCounts(drafts=3, drafted=9, accepted=3, depth=2, by_place=Counter({0: 3}))
    assert whole.sleep == SleepCounts(False, 3, 30.0, Bytes(3), None, None, 15.0, 3)
    assert merge_stats([second]) == second
    counted = {field.name for field in fields(EngineStats)} - {"min_hit_tokens", "retention_interval"}
    sevens: dict[str, Any] = {name: 7 for name in counted if isinstance(getattr(first, name), int)}
    both = replace(first, **sevens)
    merged = merge_stats([both, both])
    assert all(getattr(merged, name) == 14 for name in counted if isinstance(getattr(both, name), int))
