"""vLLM's cache events from a publisher that behaves as its own does, byte for byte where the bytes are its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgpack
import pytest
import zmq
import zmq.asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from api.router.backend import Backend, health_of
from api.router.counts import Counts
from api.router.errors import BackendError
from api.router.pool import Pool, Target
from api.router.router import Router
from api.router.settings import BackendConfig, RouterConfig
from api.router.vllm_batch import Cleared, Removed, Stored, events_of
from api.router.vllm_events import VllmFollower
from energyopt.core.config import parse_config
from energyopt.core.errors import ConfigError
from energyopt.core.units import Seconds
from engine.routing.book import Book
from engine.routing.choose import make_policy
from engine.routing.desk import Desk
from engine.routing.names import Prompt, Scheme

OWN = bytes.fromhex(
    "93cb3ff80000000000009389a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392c42001010101010101010101010101"
    "01010101010101010101010101010101010101c4200202020202020202020202020202020202020202020202020202020202020202b170617265"
    "6e745f626c6f636b5f68617368c0a9746f6b656e5f696473980102030405060708aa626c6f636b5f73697a6504a76c6f72615f6964c0a66d6564"
    "69756da3475055a96c6f72615f6e616d65c0a967726f75705f6964780083a474797065ac426c6f636b52656d6f766564ac626c6f636b5f686173"
    "68657391c4200101010101010101010101010101010101010101010101010101010101010101a66d656469756da347505581a474797065b0416c"
    "6c426c6f636b73436c6561726564c0"
)
"""Written by the encoder of vLLM 0.32: two blocks of four tokens stored, one removed, all cleared."""

SIZE = 4
TOKENS = list(range(1, 17))
NAMES = Prompt(ids=TOKENS).blocks(Scheme(SIZE, SIZE)) or []


def stored(first: int, last: int, **fields: Any) -> dict[str, Any]:
    """Blocks ``first`` to ``last`` of ``TOKENS``; block n has the hash n + 100."""
    return {
        "type": "BlockStored",
        "block_hashes": [100 + n for n in range(first, last)],
        "parent_block_hash": 99 + first if first else None,
        "token_ids": TOKENS[first * SIZE : last * SIZE],
        "block_size": SIZE,
        "medium": "GPU",
        **fields,
    }


def batch(*events: object) -> bytes:
    packed: bytes = msgpack.packb([1.0, list(events), None])
    return packed


def test_vllms_own_bytes_are_understood() -> None:
    first, second = b"\x01" * 32, b"\x02" * 32
    assert events_of(OWN) == [
        Stored((first, second), None, (1, 2, 3, 4, 5, 6, 7, 8), 4, "device"),
        Removed((first,), "device"),
        Cleared(),
    ]


def test_events_of_older_versions_are_arrays() -> None:
    old = ["BlockStored", [7], 6, [1, 2], 2, None, "CPU"]
    assert events_of(batch(old, ["BlockRemoved", [7], None], ["AllBlocksCleared"])) == [
        Stored((7,), 6, (1, 2), 2, "host"),
        Removed((7,), "device"),
        Cleared(),
    ]


def test_a_batch_may_be_a_map() -> None:
    packed = msgpack.packb({"ts": 1.0, "events": [{"type": "AllBlocksCleared"}], "data_parallel_rank": 0})
    assert events_of(packed) == [Cleared()]
    with pytest.raises(BackendError, match="no array of a time and events"):
        events_of(msgpack.packb({"ts": 1.0}))


@pytest.mark.parametrize(
    "fields",
    [
        {"lora_name": "x"},
        {"lora_id": 3},
        {"extra_keys": [["salt"]]},
        {"group_idx": 1},
        {"medium": "TAPE"},
        {"type": "BlockPainted"},
    ],
)
def test_blocks_that_hold_more_than_their_tokens_say_are_left_out(fields: dict[str, object]) -> None:
    assert events_of(batch(stored(0, 1, **fields))) == []


@settings(max_examples=25)
@given(st.binary(max_size=60) | st.recursive(st.none() | st.integers(0, 9) | st.text(max_size=3), st.lists).map(batch))
def test_anything_else_is_refused_or_says_nothing(payload: bytes) -> None:
    with contextlib.suppress(BackendError):
        assert all(isinstance(event, Stored | Removed | Cleared) for event in events_of(payload))


class Publisher:
    """Sends numbered batches to whoever has subscribed, and repeats on request those of ``kept``.

    ``topic`` stands in front of what is repeated; vLLM repeated without before it had topics, as SGLang does.
    """

    def __init__(self, context: Any, host: str = "127.0.0.1") -> None:
        self.topic = [b""]
        self._host = host
        self._socket, self._replay = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
        self.endpoint, self.replay = (self._bound(one) for one in (self._socket, self._replay))
        self.kept: dict[int, bytes] = {}
        self._answering = asyncio.ensure_future(self._answer())

    async def subscribed(self) -> None:
        assert await asyncio.wait_for(self._socket.recv(), 10) == b"\x01"

    async def send(self, number: int, *events: object) -> None:
        await self._socket.send_multipart([b"", number.to_bytes(8, "big"), batch(*events)])

    def close(self) -> None:
        self._answering.cancel()

    async def _answer(self) -> None:
        while True:
            client, _, first = await self._replay.recv_multipart()
            for number, payload in self.kept.items():
                if number >= int.from_bytes(first, "big"):
                    await self._replay.send_multipart([client, b"", *self.topic, number.to_bytes(8, "big"), payload])
            await self._replay.send_multipart([client, b"", *self.topic, b"\xff" * 8, b""])

    def _bound(self, socket: Any) -> str:
        socket.setsockopt(zmq.IPV6, 1)
        return f"tcp://{self._host}:{socket.bind_to_random_port(f'tcp://{self._host}')}"


class World:
    """A publisher and who follows it."""

    def __init__(self, publisher: Publisher, *, replay: bool) -> None:
        self.publisher, self.counts = publisher, Counts()
        self.desk = Desk(make_policy("prefix"), Book())
        config = BackendConfig(url="http://e:1", kv_events_endpoint=publisher.endpoint)
        pool = Pool(Target.of("e", "http://e:1"), connect_seconds=Seconds(1), silence_seconds=Seconds(1))
        backend = Backend(config, pool, health_of(RouterConfig(backends=(config,))))
        follower = VllmFollower(
            backend, self.desk, self.counts, publisher.endpoint, publisher.replay if replay else None
        )
        self.name = backend.name
        self.task = asyncio.ensure_future(follower.run())

    @property
    def held(self) -> dict[str, int]:
        return dict(self.desk.blocks.overlap(self.name, NAMES))

    async def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while True:
            if condition():
                return
            assert time.monotonic() < deadline, self.held
            await asyncio.sleep(0.005)


@asynccontextmanager
async def followed(
    *, replay: bool = False, kept: dict[int, bytes] | None = None, topic: bool = True, host: str = "127.0.0.1"
) -> AsyncIterator[World]:
    context = zmq.asyncio.Context()
    publisher = Publisher(context, host)
    publisher.kept = kept or {}
    publisher.topic = [b""] if topic else []
    world = World(publisher, replay=replay)
    await publisher.subscribed()
    yield world
    publisher.close()
    world.task.cancel()
    await asyncio.gather(world.task, return_exceptions=True)
    context.destroy(linger=0)


async def test_a_prompts_blocks_are_found_by_its_tokens() -> None:
    async with followed() as world:
        await world.publisher.send(5, stored(0, 2))
        await world.publisher.send(6, stored(2, 4, medium="CPU"), {"type": "BlockStored"} | stored(0, 1, medium="CPU"))
        await world.until(lambda: world.held == {"device": 2, "host": 2})
        await world.publisher.send(7, {"type": "BlockRemoved", "block_hashes": [100, 101], "medium": "GPU"})
        await world.until(lambda: world.held == {"host": 1})
        await world.publisher.send(8, {"type": "AllBlocksCleared"})
        await world.until(lambda: world.held == {})
        assert not world.counts.event_gaps


async def test_a_gap_makes_everything_unknown() -> None:
    async with followed() as world:
        await world.publisher.send(0, stored(0, 4))
        await world.until(lambda: world.held == {"device": 4})
        await world.publisher.send(2, stored(0, 1))
        await world.until(lambda: world.held == {} and world.counts.event_gaps[world.name] == 1)


@pytest.mark.parametrize("topic", [True, False])
async def test_what_was_missed_is_repeated(topic: bool) -> None:
    kept = {number: batch(stored(number, number + 1)) for number in range(4)}
    async with followed(replay=True, kept={0: kept[0]}, topic=topic) as world:
        await world.until(lambda: world.held == {"device": 1})  # from before it was there
        world.publisher.kept = kept
        await world.publisher.send(0, stored(0, 1))  # which came twice
        await world.publisher.send(3, stored(3, 4))
        await world.until(lambda: world.held == {"device": 4})
        assert not world.counts.event_gaps


async def test_what_is_repeated_beyond_the_gap_counts_and_comes_once() -> None:
    kept = {number: batch(stored(number, number + 1)) for number in range(4)}
    async with followed(replay=True, kept={0: kept[0]}) as world:
        await world.until(lambda: world.held == {"device": 1})
        world.publisher.kept = kept
        await world.publisher.send(2, stored(2, 3))
        await world.until(lambda: world.held == {"device": 4})
        await world.publisher.send(3, stored(3, 4))
        await world.publisher.send(4, {"type": "BlockRemoved", "block_hashes": [103], "medium": "GPU"})
        await world.until(lambda: world.held == {"device": 3})
        assert not world.counts.event_gaps


async def test_a_repetition_that_is_not_what_came_is_another_engines() -> None:
    kept = {number: batch(stored(number, number + 1)) for number in range(3)}
    async with followed(replay=True, kept={0: kept[0]}) as world:
        await world.until(lambda: world.held == {"device": 1})
        world.publisher.kept = kept
        await world.publisher.send(2, stored(3, 4))
        await world.until(lambda: world.counts.event_gaps[world.name] == 1)


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
async def test_an_engine_may_have_an_address_of_ipv6() -> None:
    async with followed(replay=True, kept={0: batch(stored(0, 4))}, host="[::1]") as world:
        await world.until(lambda: world.held == {"device": 4})


async def test_an_engine_that_begins_anew_has_nothing() -> None:
    async with followed() as world:
        await world.publisher.send(3, stored(0, 4))
        await world.until(lambda: world.held == {"device": 4})
        await world.publisher.send(0, stored(0, 1))
        await world.until(lambda: world.held == {})


def test_a_router_follows_who_it_is_told_to() -> None:
    told = {"url": "http://e:1", "kv_events_endpoint": "tcp://e:5557", "kv_replay_endpoint": "tcp://e:5558"}
    router = Router(parse_config(RouterConfig, {"backends": [told, {"url": "http://f:1"}]}))
    assert [type(follower).__name__ for follower in router._followers] == ["VllmFollower", "EventFollower"]
    wrong_ones = [{"kv_events_endpoint": f"tcp://{host}"} for host in ("e:0", "e:65536", "::1:5557", "a:b:1")]
    for wrong in ({"kv_events_endpoint": "http://e:1"}, {"kv_replay_endpoint": "tcp://e:1"}, *wrong_ones):
        with pytest.raises(ConfigError, match=r"kv_events_endpoint|kv_replay_endpoint"):
            parse_config(RouterConfig, {"backends": [{"url": "http://e:1", **wrong}]})
