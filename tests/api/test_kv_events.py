"""``GET /kv/events``: block events as a router reads them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from api.routes.kv_events import NAMES_A_FRAME, frames_of
from engine.kv.events import Kind, KvBatch, KvEvent
from engine.kv_feed import KvEventFeed, KvNews
from engine.routing.names import Prompt, Scheme
from tuner.replay.sse import SseParser

BODY = {"prompt": "abcdefghijklmnopqrstuvwxyz" * 4, "max_tokens": 2}


@pytest.fixture
def served(serve_it: Any, make_engine: Any) -> Any:
    engine = make_engine()
    return serve_it(engine=engine, kv_events=KvEventFeed(engine.watch_cache, engine.block_naming))


@contextmanager
def reading(served: Any, **headers: str) -> Iterator[Iterator[dict[str, Any]]]:
    """Events as they come."""
    with served.http.stream("GET", "/kv/events", headers=headers) as reply:
        assert reply.status_code == 200

        def events() -> Iterator[dict[str, Any]]:
            parser = SseParser()
            for piece in reply.iter_raw():
                yield from (json.loads(data) for data in parser.feed(piece))

        yield events()


def test_a_reader_learns_how_blocks_are_named_and_which_there_are(served: Any) -> None:
    served.http.post("/v1/completions", json=BODY)
    with reading(served) as events:
        hello, listing = next(events), next(events)
        assert hello["naming"] == "energyopt-kv-block-1"
        scheme = Scheme(hello["block_size"], hello["hash_unit"])
        (stored,) = [event for event in listing["events"] if event["type"] == "BlockStored"]
        names = Prompt(ids=list(BODY["prompt"].encode())).blocks(scheme)  # type: ignore[attr-defined]
        assert names is not None
        assert {name.hex() for name in names} <= set(stored["block_hashes"])
        assert (stored["medium"], stored["group_idx"], stored["block_size"]) == ("GPU", 0, 16)
        served.http.post("/v1/completions", json={**BODY, "prompt": "z" * 64})
        later = next(events)
        assert later["seq"] > listing["seq"]
        assert {event["type"] for event in later["events"]} == {"BlockStored"}
        served.http.post("/reset_prefix_cache")
        assert any(event["type"] == "AllBlocksCleared" for event in next(events)["events"])


def test_a_reader_who_comes_back_gets_what_it_missed(served: Any) -> None:
    with served.http.stream("GET", "/kv/events") as reply:
        text = ""
        for piece in reply.iter_text():
            text += piece
            if "\nid: " in text and text.endswith("\n\n"):
                break
    mark = text.split("id: ")[1].split("\n")[0]
    served.http.post("/v1/completions", json=BODY)
    time.sleep(0.1)
    with reading(served, **{"last-event-id": mark}) as events:
        next(events)
        assert [event["type"] for event in next(events)["events"]] == ["BlockStored"]
    with reading(served, **{"last-event-id": "feed:7"}) as events:
        next(events)
        assert next(events)["events"][0]["type"] == "AllBlocksCleared"
    assert served.http.get("/kv/events", headers={"last-event-id": "soon"}).status_code == 400


def test_who_may_read(serve_it: Any, make_engine: Any) -> None:
    engine = make_engine()
    feed = KvEventFeed(engine.watch_cache, engine.block_naming)
    served = serve_it(engine=engine, kv_events=feed, api_key="operator", tenants={"t": "tenant"})
    assert served.http.get("/kv/events").status_code == 401
    assert served.http.get("/kv/events", headers={"authorization": "Bearer t"}).status_code == 403
    with reading(served, authorization="Bearer operator") as events:
        assert next(events)["type"] == "hello"


def test_an_engine_without_events_says_so(serve_it: Any) -> None:
    assert serve_it().http.get("/kv/events").status_code == 404


def test_large_batches_come_in_parts_and_only_the_last_is_marked() -> None:
    names = tuple(number.to_bytes(16, "big") for number in range(3 * NAMES_A_FRAME))
    batch = KvBatch(5, (KvEvent(Kind.CLEARED, "device", 0), KvEvent(Kind.STORED, "host", 1, names)))
    frames = frames_of(KvNews("ab", batch, whole=True), 16)
    assert [frame.startswith(b"id: ab:5\n") for frame in frames] == [*([False] * (len(frames) - 1)), True]
    events = [event for frame in frames for event in json.loads(frame.split(b"data: ")[1])["events"]]
    assert events[0] == {"type": "AllBlocksCleared", "medium": "GPU"}
    assert [name for event in events[1:] for name in event["block_hashes"]] == [name.hex() for name in names]
    assert all(event["medium"] == "CPU" and event["group_idx"] == 1 for event in events[1:])
    assert frames_of(KvNews("ab", KvBatch(0, ()), whole=True), 16)[0].startswith(b"id: ab:0\ndata: ")
