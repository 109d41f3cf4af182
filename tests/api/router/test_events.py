"""The router follows real engines' caches, and forgets what it cannot know any more."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from api.router.backend import Backend, health_of
from api.router.counts import Counts
from api.router.errors import BackendError
from api.router.events import EventFollower, GapError
from api.router.pool import Pool, Target
from api.router.settings import BackendConfig, RouterConfig
from energyopt.core.units import Seconds
from engine.kv_feed import KvEventFeed
from engine.routing.book import Book
from engine.routing.choose import make_policy
from engine.routing.desk import Desk
from engine.routing.names import Prompt, Scheme

PROMPT = list(range(97, 117)) * 4
HELLO = {"type": "hello", "naming": "energyopt-kv-block-1", "block_size": 16, "hash_unit": 16}
NAMES = [bytes([number]) * 16 for number in range(4)]


def eventually(condition: Callable[[], bool]) -> None:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < 10, "it did not happen in time"
        time.sleep(0.01)


def test_token_prompts_go_where_an_engine_says_that_it_holds_them(world: Any, serve_it: Any, make_engine: Any) -> None:
    engines = [make_engine() for _ in range(2)]
    feeds = [KvEventFeed(one.watch_cache, one.block_naming) for one in engines]
    served = [
        serve_it(engine=one, kv_events=feed, on_stop=feed.close) for one, feed in zip(engines, feeds, strict=True)
    ]
    # Before the router is there: only events can tell it.
    served[1].http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 1})
    router = world.router(*({"url": one.url} for one in served), policy="prefix")
    desk = router.router.desk
    names = [backend.name for backend in router.router.fleet.backends]
    eventually(lambda: desk.blocks.size(names[1]) > 0)
    with router.client() as http:
        for seed in range(3):
            reply = http.post("/v1/completions", json={"prompt": [*PROMPT, 97 + seed], "max_tokens": 1})
            assert reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 80
        pages = http.get("/router/backends").json()["backends"]
        assert [page["prefixes"] for page in pages] == ["events", "events"]
        assert [page["state"] for page in pages] == ["up", "up"]
        served[1].http.post("/reset_prefix_cache")
        eventually(lambda: desk.blocks.size(names[1]) == 0)
    assert engines[0].stats().prompt_tokens == 0


def test_an_engine_that_stops_lets_its_followers_go_at_once(world: Any, serve_it: Any, make_engine: Any) -> None:
    engine = make_engine()
    feed = KvEventFeed(engine.watch_cache, engine.block_naming)
    served = serve_it(engine=engine, kv_events=feed, on_stop=feed.close)
    router = world.router({"url": served.url})
    eventually(lambda: bool(router.router.desk.fed))
    start = time.monotonic()
    served.server.stop()
    served.thread.join(10)
    assert time.monotonic() - start < 3


@pytest.fixture
def desk() -> Desk:
    return Desk(make_policy("prefix"), Book())


@pytest.fixture
def follower(desk: Desk) -> EventFollower:
    one = BackendConfig(url="http://b:1", name="b")
    pool = Pool(Target.of("b", one.url), connect_seconds=Seconds(1.0), silence_seconds=Seconds(1.0))
    return EventFollower(Backend(one, pool, health_of(RouterConfig(backends=(one,)))), desk, Counts())


def batch(seq: int, *events: dict[str, object], **more: object) -> dict[str, object]:
    return {"type": "batch", "epoch": "e", "seq": seq, "events": list(events), **more}


def stored(*names: bytes, **more: object) -> dict[str, object]:
    return {"type": "BlockStored", "block_hashes": [name.hex() for name in names], "medium": "GPU", **more}


CLEARED: dict[str, object] = {"type": "AllBlocksCleared", "medium": "GPU"}


def test_batches_are_followed(follower: EventFollower, desk: Desk) -> None:
    for document in (
        HELLO,
        batch(7, CLEARED, stored(*NAMES[:2]), more=True),
        batch(7, stored(NAMES[2])),
        batch(8, stored(NAMES[3], group_idx=1), stored(NAMES[2], medium="CPU"), stored(NAMES[3], medium="TAPE")),
        batch(9, {"type": "BlockRemoved", "block_hashes": [NAMES[2].hex()], "medium": "GPU"}),
        {"type": "of tomorrow"},
    ):
        follower._take(document)
    assert desk.blocks.overlap("b", NAMES) == {"device": 2, "host": 1}
    follower._take(batch(12, CLEARED))  # everything anew
    assert desk.blocks.overlap("b", NAMES) == {}
    assert dict(follower._headers())[b"last-event-id"] == b"e:12"


@pytest.mark.parametrize(
    ("document", "error"),
    [
        (batch(9, stored(NAMES[1])), GapError),
        ({**batch(2, stored(NAMES[1])), "epoch": "other"}, GapError),
        ({"type": "batch"}, BackendError),
        (batch(2, {"type": "BlockStored", "block_hashes": ["xyz"]}), BackendError),
        (batch(2, {"type": "BlockStored", "block_hashes": [5]}), BackendError),
        ({**HELLO, "naming": "another"}, BackendError),
        ({**HELLO, "hash_unit": 5}, BackendError),
        ({**HELLO, "block_size": 32}, GapError),
    ],
)
def test_what_cannot_be_followed_is_said(
    follower: EventFollower, document: dict[str, object], error: type[Exception]
) -> None:
    follower._take(HELLO)
    follower._take(batch(1, CLEARED, stored(NAMES[0])))
    with pytest.raises(error):
        follower._take(document)


def test_a_backend_that_was_down_begins_anew(follower: EventFollower, desk: Desk) -> None:
    follower._take(HELLO)
    follower._take(batch(1, CLEARED, stored(NAMES[0])))
    desk.forget("b")
    with pytest.raises(GapError):
        follower._take(batch(2, stored(NAMES[1])))


def test_a_lost_connection_is_taken_up_again_and_a_gap_lists_everything(world: Any) -> None:
    """A scripted engine: the first connection breaks, the second skips a number, the third begins anew."""
    marks: list[list[str]] = []
    names = Prompt(ids=PROMPT).blocks(Scheme(16, 16))
    assert names is not None

    async def answer(seen: Any) -> None:
        marks.append(seen.header("last-event-id"))
        parts = [
            [batch(1, CLEARED, stored(names[0]))],
            [batch(2, stored(names[1])), batch(4, stored(names[2]))],
            [batch(5, CLEARED, stored(*names[:3]))],
        ][min(len(marks), 3) - 1]
        body = b"".join(b"data: %b\n\n" % json.dumps(part).encode() for part in (HELLO, *parts))
        seen.writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + body)
        await seen.writer.drain()
        if len(marks) < 3:
            seen.writer.close()
        else:
            await asyncio.sleep(30)

    backend = world.backend(answer, events=True)
    router = world.router(backend).router
    name = router.fleet.backends[0].name
    eventually(lambda: len(marks) == 3 and router.desk.blocks.size(name) == 3)
    assert marks == [[], ["e:1"], []]
    assert router.counts.event_gaps == {name: 1}
