"""Whole engines that hand over through real sockets: the same text, and leases that end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig, KvConfig, KvTransferConfig
from energyopt.core.errors import ConfigError
from energyopt.core.records import FinishReason
from energyopt.core.units import Bytes
from engine.batch import CacheShape
from engine.disagg.assembly import open_exchange
from engine.disagg.errors import HandOverError, Reason
from engine.disagg.exchange import Address, Exchange
from engine.disagg.leases import LeaseBook
from engine.disagg.params import Lend, Offer, Transfer
from engine.disagg.ports import Ask, Piece
from engine.fake import FakeRunner, FakeTokenizer
from engine.fake_mover import FakeMover
from engine.front import EngineFront
from engine.output import Output
from engine.request import SamplingParams

PROMPT = [97 + number % 26 for number in range(203)]
BLOCKS = 64


class Node:
    """One engine with a fake runner that hands over."""

    def __init__(self, layout: str = "fake", step_time: float = 0.0, secret: bytes = b"", **transfer: Any) -> None:
        shape = CacheShape(BLOCKS, 16, Bytes(128))
        clock = MonotonicClock()
        self.runner = FakeRunner(shape, step_time=step_time)
        self.exchange: Exchange = open_exchange(
            KvTransferConfig.model_validate(transfer), FakeMover(self.runner, layout), clock, secret=secret
        )
        config = EngineConfig(model="fake", max_num_batched_tokens=64, kv=KvConfig(block_tokens=16))
        self.front = EngineFront(
            config, self.runner, FakeTokenizer(), max_model_len=1024, clock=clock, remote=self.exchange
        )
        self._asked = 0

    async def ask(self, transfer: Transfer | None = None, max_tokens: int = 12, **options: Any) -> list[Output]:
        self._asked += 1
        params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True, transfer=transfer, **options)
        return [output async for output in self.front.generate(PROMPT, params, request_id=f"r{self._asked}")]

    async def lend(self) -> Offer:
        (output,) = await self.ask(Lend(), 1)
        assert output.offer is not None
        return output.offer

    async def until_idle(self) -> None:
        """Until no block is used: leases and copies have ended."""
        deadline = time.monotonic() + 5
        while self.front.stats().blocks_used:
            assert time.monotonic() < deadline, "blocks stay in use"
            await asyncio.sleep(0.01)


def text(outputs: list[Output]) -> str:
    return "".join(output.text for output in outputs)


@pytest.fixture
def node() -> Iterator[Callable[..., Node]]:
    made: list[Node] = []

    def make(**options: Any) -> Node:
        made.append(Node(**options))
        return made[-1]

    yield make
    for one in made:
        one.front.close()


@pytest.mark.parametrize("transport", ["tcp", "shm"])
async def test_the_text_is_the_same_and_one_token_is_computed(node: Any, transport: str) -> None:
    prefill, decode, plain = node(transport=transport), node(transport=transport), node()
    expected = text(await plain.ask())
    outputs = await decode.ask(await prefill.lend())
    assert text(outputs) == expected
    record = outputs[-1].record
    assert record is not None
    assert record.cached_by_tier == {"remote": len(PROMPT) - 1}
    assert decode.front.stats().prompt_tokens_by_source["local_compute"] == 1
    await prefill.until_idle()
    again = await decode.ask(await prefill.lend())
    assert text(again) == expected
    (counts,) = decode.front.stats().tiers
    assert (counts.tier, counts.loads, dict(counts.failures)) == ("remote", 14, {}), "12 of 13 blocks were here already"
    await decode.until_idle()


async def test_many_at_once_from_two_prefill_engines(node: Any) -> None:
    prefills, decode = [node(transport="tcp"), node(transport="tcp")], node(transport="tcp")
    expected = text(await node().ask())

    async def one(number: int) -> str:
        return text(await decode.ask(await prefills[number % 2].lend()))

    assert await asyncio.gather(*map(one, range(12))) == [expected] * 12
    for each in (*prefills, decode):
        await each.until_idle()


@pytest.mark.parametrize("policy", ["recompute", "fail"])
async def test_a_prefill_engine_that_is_gone(node: Any, policy: str) -> None:
    prefill, decode = node(), node(failure_policy=policy)
    expected = text(await node().ask())
    offer = await prefill.lend()
    prefill.front.close()
    outputs = await decode.ask(offer)
    if policy == "recompute":
        assert text(outputs) == expected
    else:
        assert outputs[-1].finish_reason is FinishReason.ERROR
    assert decode.front.stats().load_failures == 1
    assert text(await decode.ask(await node().lend())) == expected, "the decode engine goes on with another"
    await decode.until_idle()


async def test_leases_end_by_themselves_and_heartbeats_keep_them(node: Any) -> None:
    prefill, decode = node(lease=2.0), node(step_time=0.02, lease=2.0)
    kept, left = await prefill.lend(), await prefill.lend()
    decode.exchange.hold(kept)
    deadline = time.monotonic() + 10
    while not prefill.front.stats().tiers[0].failures:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    assert prefill.front.stats().tiers[0].failures == {"expired": 13}
    assert prefill.front.stats().blocks_used == 13
    expected = text(await node().ask())
    assert text(await decode.ask(left)) == expected, "too late, so it was computed"
    assert text(await decode.ask(kept)) == expected
    await prefill.until_idle()


async def test_engines_of_different_secrets_or_layouts_compute_for_themselves(node: Any) -> None:
    expected = text(await node().ask())
    prefill = node(secret=b"one", transport="tcp")
    for other in (node(secret=b"two", transport="tcp"), node(secret=b"one", transport="tcp", layout="other")):
        assert text(await other.ask(await prefill.lend())) == expected
        assert other.front.stats().load_failures == 1
        await other.until_idle()


async def test_a_request_cannot_make_the_engine_talk_to_any_host(node: Any) -> None:
    prefill, decode = node(transport="tcp"), node(transport="tcp", peers=("10.0.0.7",))
    outputs = await decode.ask(await prefill.lend())
    assert text(outputs) == text(await node().ask())
    assert decode.front.stats().tiers[0].hits == 0, "nothing was even asked for"
    offer = replace(await prefill.lend(), mode="store")
    assert text(await prefill.ask(offer)) == text(outputs)


async def test_an_aborted_request_gives_its_lease_back(node: Any) -> None:
    prefill, decode = node(), node(step_time=0.05)
    offer = await prefill.lend()
    stream = decode.front.generate(
        PROMPT, SamplingParams(max_tokens=50, temperature=0, ignore_eos=True, transfer=offer), request_id="a"
    )
    await anext(stream)
    await stream.aclose()
    await decode.until_idle()
    await prefill.until_idle()


def test_an_address_that_tells_peers_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="Peers cannot reach"):
        Node(transport="tcp", host="0.0.0.0")
    with pytest.raises(ValueError, match="transport mooncake needs pool"):
        KvTransferConfig(transport="mooncake")


class Wedged:
    """A way to a peer that takes every message and answers none, until it is let go."""

    def __init__(self, free: threading.Event) -> None:
        self._free = free

    def fetch(self, ask: Ask) -> list[Piece]:
        raise HandOverError(Reason.GONE, "There are none.")

    def renew(self, offer: Offer) -> None:
        self._free.wait(20)

    release = renew

    def close(self) -> None:
        """Nothing is held."""


def test_peers_that_do_not_answer_hold_the_end_up_once_not_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.disagg.exchange._CLOSE_PATIENCE", 0.2)
    clock, free = MonotonicClock(), threading.Event()
    mover = FakeMover(FakeRunner(CacheShape(BLOCKS, 16, Bytes(128))), "fake")
    exchange = Exchange(mover, clock, LeaseBook(clock), Address("a" * 32), lambda offer: Wedged(free))
    for number in range(12):
        offer = Offer(f"{number:032x}", f"{number:032x}", "127.0.0.1", 1, "fake", 16, ((0,),))
        exchange.hold(offer)
        exchange.drop(offer)
    start = time.monotonic()
    exchange.close()
    assert time.monotonic() - start < 1.2
    free.set()
