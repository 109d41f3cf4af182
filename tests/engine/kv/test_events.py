"""The log of cache events against the cache itself, and its readers who come, go and come back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from concurrent.futures import Future

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig
from energyopt.core.errors import EngineDeadError
from energyopt.core.units import Bytes
from engine.batch import CacheShape
from engine.fake import FakeRunner, FakeTokenizer
from engine.front import EngineFront
from engine.kv.blocks import DEVICE, BlockPool
from engine.kv.checksum import checksum
from engine.kv.events import EventLog, Kind, KvBatch, KvEvent
from engine.kv.host import HOST, HostTier
from engine.kv_feed import KvEventFeed, KvNews
from engine.request import SamplingParams

Held = dict[tuple[str, int], set[bytes]]


def follow(held: Held, batches: Iterable[KvBatch]) -> Held:
    """What a reader knows after these batches."""
    for event in (event for batch in batches for event in batch.events):
        if event.kind is Kind.CLEARED:
            held = {place: names for place, names in held.items() if place[0] != event.tier}
        elif event.kind is Kind.STORED:
            held.setdefault((event.tier, event.group), set()).update(event.names)
        else:
            held.get((event.tier, event.group), set()).difference_update(event.names)
    return {place: names for place, names in held.items() if names}


@given(seed=st.integers(0, 2**32), late=st.integers(0, 60))
@settings(max_examples=40, deadline=None)
def test_a_log_knows_what_can_be_found_whenever_it_was_begun(seed: int, late: int) -> None:
    chance, pool, log, names = random.Random(seed), BlockPool(6, 2), EventLog(), [bytes([n]) for n in range(9)]
    used: list[int] = []
    for step in range(80):
        if step == late:
            pool.watch(log)
        match chance.randrange(5):
            case 0 if pool.num_available:
                used += pool.allocate(1)
            case 1 if used:
                pool.register(chance.choice(used), chance.choice(names), chance.randrange(2))
            case 2 if used:
                pool.free([used.pop(chance.randrange(len(used)))])
            case 3 if (found := pool.find(chance.choice(names))) is not None:
                pool.touch([found])
                used.append(found)
            case 4 if chance.random() < 0.1:
                pool.reset()
        if step >= late:
            log.collect()
            held = follow({}, [log.listing()])
            for group in range(2):
                found_names = {name for name in names if pool.find(name, group) is not None}
                assert held.get((DEVICE, group), set()) == found_names
    pool.watch(None)
    before = log.newest
    pool.reset()
    log.collect()
    assert log.newest == before


def test_the_host_tiers_blocks_are_told_too() -> None:
    tier, log = HostTier(memoryview(bytearray(16)), 8), EventLog()

    def store(key: bytes) -> None:
        block = tier.reserve(key)
        assert block is not None
        block.filled(checksum(block.view))
        block.release()

    first, other_group, third = b"a" * 16, b"b" * 16 + b"\x01", b"c" * 16
    store(first)
    tier.watch(log)
    store(other_group)
    log.collect()
    assert follow({}, [log.listing()]) == {(HOST, 0): {first}, (HOST, 1): {b"b" * 16}}
    store(third)
    tier.reset()
    log.collect()
    assert follow({}, [log.listing()]) == {}
    assert [event.kind for event in log.after(log.newest - 1)[0].events][:2] == [Kind.REMOVED, Kind.STORED]  # type: ignore[index]


@given(kept=st.integers(1, 40), seed=st.integers(0, 2**32), left=st.integers(0, 12))
@settings(max_examples=60, deadline=None)
def test_whoever_comes_back_knows_as_much_as_whoever_stayed(kept: int, seed: int, left: int) -> None:
    chance, log = random.Random(seed), EventLog(kept_names=kept)
    seen: Held = {}
    for number in range(12):
        if number == left:
            seen = follow({}, [log.listing()])
        for _ in range(chance.randrange(1, 6)):
            act = chance.choice([log.stored, log.stored, log.removed])
            act(DEVICE, chance.randrange(2), bytes([chance.randrange(6)]))
        if chance.random() < 0.1:
            log.cleared(DEVICE)
        log.collect()
    missed = log.after(left)
    whole = follow({}, [log.listing()])
    if missed is not None and left < 12:
        assert [batch.number for batch in missed] == list(range(left + 1, 13))
        assert follow(seen, missed) == whole
    assert log.after(13) is None
    assert log.after(12) == []


def test_notes_that_nobody_takes_are_dropped_and_that_is_known() -> None:
    log = EventLog(max_notes=3)
    for number in range(5):
        log.stored(DEVICE, 0, bytes([number]))
    assert log.lost


def test_events_of_one_kind_come_together() -> None:
    log = EventLog()
    for name in (b"1", b"2"):
        log.stored(DEVICE, 0, name)
    log.removed(DEVICE, 0, b"1")
    log.collect()
    log.collect()
    assert log.after(0) == [
        KvBatch(1, (KvEvent(Kind.STORED, DEVICE, 0, (b"1", b"2")), KvEvent(Kind.REMOVED, DEVICE, 0, (b"1",))))
    ]


def _front() -> EngineFront:
    config = EngineConfig(model="fake", max_num_seqs=4)
    runner = FakeRunner(CacheShape(32, 4, Bytes(1)))
    return EngineFront(config, runner, FakeTokenizer(), max_model_len=100, clock=MonotonicClock())


async def _ask(front: EngineFront, prompt: list[int], name: str) -> None:
    async for _ in front.generate(prompt, SamplingParams(max_tokens=3, ignore_eos=True), request_id=name):
        pass


async def _next(feed: KvEventFeed, epoch: str | None = None, after: int = 0) -> list[KvNews]:
    """What a reader gets at once, or in a short while."""
    got: list[KvNews] = []
    reader = feed.read(epoch, after)
    try:
        async with asyncio.timeout(0.3):
            async for news in reader:
                assert news is not None
                got.append(news)
    except TimeoutError:
        return got
    finally:
        await reader.aclose()
    return got


async def test_nothing_is_recorded_until_somebody_reads_and_then_nothing_is_missed() -> None:
    front = _front()
    feed = KvEventFeed(front.watch_cache, front.block_naming, linger=0.05)
    assert feed.naming == (4, 4)
    await _ask(front, list(range(9)), "a")
    assert not feed.recording
    (first,) = await _next(feed)
    assert first.whole
    (held,) = follow({}, [first.batch]).values()
    assert len(held) == 2
    reading = asyncio.create_task(_next(feed, first.epoch, first.batch.number))
    await _ask(front, list(range(40, 53)), "b")
    news = await reading
    assert news
    assert not any(one.whole for one in news)
    (now,) = follow({(DEVICE, 0): set(held)}, [one.batch for one in news]).values()
    assert len(now) == 2 + 3
    await asyncio.sleep(0.2)
    assert not feed.recording  # the last reader has left a while ago
    (again,) = await _next(feed, first.epoch, news[-1].batch.number)
    assert again.whole
    assert follow({}, [again.batch]) == {(DEVICE, 0): now}
    front.close()


async def test_a_feed_ends_when_it_is_closed_and_when_the_engine_is_dead() -> None:
    front = _front()
    feed = KvEventFeed(front.watch_cache, front.block_naming)
    reading = asyncio.create_task(_next(feed))
    await asyncio.sleep(0.05)
    feed.close()
    await asyncio.wait_for(reading, 1)
    front.close()

    def dead(log: EventLog | None) -> Future[int]:
        raise EngineDeadError("it is over")

    assert await _next(KvEventFeed(dead, (4, 4))) == []


async def test_a_log_that_lost_something_is_begun_anew() -> None:
    logs: list[EventLog] = []

    def watch(log: EventLog | None) -> Future[int]:
        assert log is not None
        logs.append(log)
        log.cleared(DEVICE)
        done: Future[int] = Future()
        done.set_result(0)
        return done

    feed = KvEventFeed(watch, (4, 4))
    (first,) = await _next(feed)
    logs[0].lost = True
    (second,) = await _next(feed, first.epoch, first.batch.number)
    assert second.whole
    assert second.epoch != first.epoch
    assert len(logs) == 2


@pytest.mark.parametrize("late", [False, True])
async def test_resets_are_told(late: bool) -> None:
    front = _front()
    feed = KvEventFeed(front.watch_cache, front.block_naming)
    await _ask(front, list(range(9)), "a")
    (first,) = await _next(feed)
    await front.reset_prefix_cache()
    await asyncio.sleep(0.05)
    news = await _next(feed) if late else await _next(feed, first.epoch, first.batch.number)
    assert follow({}, [first.batch, *(one.batch for one in news)]) == {}
    front.close()
