"""Streams of events: everything once, in order, whoever comes and goes, the service itself included."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from api.jobs import hub as hub_module
from api.jobs.app import create_job_app
from api.jobs.feed import DeviceFeed
from api.jobs.hub import EventHub
from api.jobs.services import JobLimits, JobServices
from energyopt.core.study import StudyState
from energyopt.store.event_tail import EventTail
from energyopt.store.service_store import ServiceStore
from tuner.fake_study import toy_spec

Frame = tuple[int | None, str, Any]


@pytest.fixture
def study(store: ServiceStore) -> str:
    return store.jobs.submit(toy_spec(), {}, labels={})[0]


def parse(frame: bytes) -> Frame | None:
    """(id, event, data) of one frame; None for a comment or a bare retry."""
    fields = dict(line.split(": ", 1) for line in frame.decode().strip().split("\n") if not line.startswith(":"))
    if "data" not in fields:
        return None
    return (int(fields["id"]) if "id" in fields else None, fields["event"], json.loads(fields["data"]))


async def collect(frames: AsyncGenerator[bytes], count: int) -> list[int]:
    """The ids of ``count`` events that have one; shorter if the stream ends."""
    ids: list[int] = []
    async with asyncio.timeout(20):
        async for frame in frames:
            found = parse(frame)
            if found is not None and found[0] is not None:
                ids.append(found[0])
                if len(ids) == count:
                    break
    await frames.aclose()
    return ids


def write(store: ServiceStore, study: str, count: int) -> list[int]:
    return [store.studies.add_event(study, "x", {"n": n}).id for n in range(count)]


async def test_what_was_and_what_comes_once_and_in_order(store: ServiceStore, study: str) -> None:
    hub = EventHub(store.tail, max_watchers=10, poll=0.01)
    before = write(store, study, 5)
    watch = asyncio.create_task(collect(hub.watch(study, before[1]), 23))
    late = asyncio.create_task(collect(hub.watch(study, 0), 25))
    after = await asyncio.to_thread(write, store, study, 20)
    assert await watch == before[2:] + after
    assert await late == before + after
    assert hub.watchers == 0


async def test_a_mark_of_the_future_costs_nobody_else_an_event(store: ServiceStore, study: str) -> None:
    hub = EventHub(store.tail, max_watchers=10, poll=0.01)
    liar = asyncio.create_task(collect(hub.watch(study, 2**60), 1))
    await asyncio.sleep(0.1)
    honest = asyncio.create_task(collect(hub.watch(study, 0), 10))
    await asyncio.sleep(0.1)
    assert await asyncio.to_thread(write, store, study, 10) == await honest
    assert not liar.done()
    liar.cancel()


async def test_a_slow_watcher_misses_nothing(store: ServiceStore, study: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queue overflows many times over while it sleeps; then the database tells it the rest."""
    monkeypatch.setattr(hub_module, "QUEUE", 4)
    hub = EventHub(store.tail, max_watchers=10, poll=0.01)
    frames = hub.watch(study, 0)
    assert await anext(frames) == b"retry: 2000\n\n"
    asking = asyncio.create_task(collect(hub.watch(study, 0), 100))  # keeps the hub at work meanwhile
    written = await asyncio.to_thread(write, store, study, 100)
    assert await asking == written
    assert await collect(frames, 100) == written


async def test_a_stream_ends_with_its_study(store: ServiceStore, study: str) -> None:
    hub = EventHub(store.tail, max_watchers=10, poll=0.01)

    async def whole(after: int) -> list[Frame]:
        async with asyncio.timeout(20):
            return [found async for frame in hub.watch(study, after) if (found := parse(frame)) is not None]

    watching = asyncio.create_task(whole(0))
    await asyncio.sleep(0.05)
    store.jobs.note_progress(study, {"done": 3})
    await asyncio.sleep(0.1)
    store.studies.change_state(study, StudyState.CANCELLED, when=[StudyState.QUEUED])
    frames = await watching
    assert frames[-1] == (None, "end", {})
    assert [data["data"]["state"] for _, kind, data in frames if kind == "state"] == ["cancelled"]
    standings = [data for _, kind, data in frames if kind == "standing"]
    assert standings[-1]["state"] == "cancelled"
    assert {"state": "queued", "progress": {"done": 3}} in standings
    assert (await whole(0))[-1] == (None, "end", {}), "also for one who comes when all is over"


async def test_silence_has_a_heartbeat(store: ServiceStore, study: str) -> None:
    hub = EventHub(store.tail, max_watchers=10, poll=0.01, heartbeat=0.05)
    frames = hub.watch(study, 0)
    async with asyncio.timeout(10):
        async for frame in frames:
            if frame.startswith(b": "):
                break
    await frames.aclose()


class _Failing(EventTail):
    """A database that is away now and then."""

    def __init__(self, tail: EventTail) -> None:
        self._tail, self.calls = tail, 0

    def last(self, study_id: str) -> int:
        return self._tail.last(study_id)

    def after(self, marks: Any) -> Any:
        from energyopt.core.errors import StoreError

        self.calls += 1
        if len(marks) == 1 and self.calls in (3, 4, 6):
            raise StoreError("away")
        return self._tail.after(marks)


async def test_a_database_that_was_away_costs_no_event(store: ServiceStore, study: str) -> None:
    tail = _Failing(store.tail)
    hub = EventHub(tail, max_watchers=10, poll=0.01)
    watch = asyncio.create_task(collect(hub.watch(study, 0), 30))
    await asyncio.sleep(0.02)
    written = await asyncio.to_thread(write, store, study, 30)
    assert await watch == written
    assert tail.calls > 4, "it was away twice before everything had come"


def follow(url: str, study: str, seen: list[int], done: threading.Event, count: int) -> None:
    """As a browser does: come back with the last id after every end of the connection."""
    with httpx.Client(base_url=url, timeout=20, trust_env=False) as http:
        while len(seen) < count and not done.is_set():
            headers = {"last-event-id": str(seen[-1])} if seen else {}
            try:
                with http.stream("GET", f"/v1/studies/{study}/events", headers=headers) as reply:
                    assert reply.status_code == 200
                    for line in reply.iter_lines():
                        if line.startswith("id: "):
                            seen.append(int(line.removeprefix("id: ")))
                            if len(seen) >= count:
                                return
            except httpx.TransportError:
                time.sleep(0.05)


def test_a_restart_of_the_service_neither_loses_nor_repeats(
    services: JobServices, store: ServiceStore, study: str, restarting: Callable[[], str]
) -> None:
    url, seen, done = restarting(), list[int](), threading.Event()
    watcher = threading.Thread(target=follow, args=(url, study, seen, done, 60), daemon=True)
    watcher.start()
    written = []
    for _ in range(3):
        written += write(store, study, 20)
        time.sleep(0.3)
        restarting()
    watcher.join(20)
    done.set()
    assert seen == written


@pytest.fixture
def restarting(services: JobServices) -> Iterator[Callable[[], str]]:
    """Start the service, or end it and start it again on the same port."""
    from api.jobs.app import create_job_app
    from api.serve import Server, bind
    from energyopt.core.units import Seconds

    running: list[tuple[Server, threading.Thread]] = []
    port = 0

    def stop() -> None:
        for server, thread in running:
            server.stop()
            thread.join(20)
            assert not thread.is_alive()
        running.clear()

    def again() -> str:
        nonlocal port
        stop()
        app, listener = create_job_app(services), bind("127.0.0.1", port)
        port = listener.getsockname()[1]
        server = Server(app, grace=Seconds(0.1), abort=app.state.hub.close)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{port}"

    services = replace(services, hosts=frozenset(("127.0.0.1",)))
    yield again
    stop()


async def test_the_route_reads_the_last_id(http: httpx.AsyncClient, store: ServiceStore, study: str) -> None:
    written = write(store, study, 3)
    store.studies.set_state(study, StudyState.CANCELLED)
    reply = await http.get(f"/v1/studies/{study}/events", headers={"last-event-id": str(written[0])})
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert [line for line in reply.text.split("\n") if line.startswith("id: ")] == [f"id: {n}" for n in written[1:]]
    by_query = await http.get(f"/v1/studies/{study}/events", params={"after": written[1]})
    assert f"id: {written[2]}" in by_query.text
    for wrong in (b"x", b"-1", b"9" * 25, "²".encode("latin-1")):
        headers = {b"last-event-id": wrong}
        assert (await http.get(f"/v1/studies/{study}/events", headers=headers)).status_code == 400


async def test_there_is_a_most_of_watchers(services: JobServices, study: str) -> None:
    hub = EventHub(services.tail, max_watchers=1)
    frames = hub.watch(study, 0)
    await anext(frames)
    with pytest.raises(Exception, match="1 watchers"):
        hub.admit()
    await frames.aclose()
    hub.admit()
    assert JobLimits().max_watchers >= 500


async def test_who_watches_devices_counts_too(services: JobServices, study: str) -> None:
    app = create_job_app(replace(services, limits=JobLimits(max_watchers=1)))
    watching = app.state.devices.watch()
    await anext(watching)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://testhost") as http:
        for path in ("/v1/devices/events", f"/v1/studies/{study}/events"):
            reply = await http.get(path)
            assert (reply.status_code, "retry-after" in reply.headers) == (503, True)
    await watching.aclose()
    assert app.state.devices.watchers == 0


async def test_one_look_at_the_devices_serves_everybody_and_ends_with_the_service() -> None:
    looks, over = [0], [False]

    def look() -> list[dict[str, object]]:
        looks[0] += 1
        return [{"device": "GPU-1", "power": float(looks[0]), "limit": None, "clock": float("nan")}]

    feed = DeviceFeed(look, lambda: over[0], every=0.2)

    async def take(count: int) -> list[float]:
        found = []
        async for frame in feed.watch():
            if (parsed := parse(frame)) is not None:
                assert parsed[2]["items"][0]["clock"] is None, "JSON has no NaN: unknown is null"
                found.append(parsed[2]["items"][0]["power"])
                if len(found) == count:
                    over[0] = True
        return found

    async with asyncio.timeout(20):
        several = await asyncio.gather(*(take(3) for _ in range(20)))
    assert all(found[:2] == sorted(set(found[:2])) for found in several), "each look once"
    assert looks[0] <= 4, "twenty watchers cost no more looks than one"


async def test_devices_are_streamed_to_who_may_read(
    services: JobServices, serve_jobs: Callable[[JobServices], str]
) -> None:
    url = serve_jobs(replace(services, hosts=frozenset(("127.0.0.1",))))
    asking = httpx.AsyncClient(trust_env=False, timeout=20)
    async with asking as client, client.stream("GET", f"{url}/v1/devices/events") as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        async for line in reply.aiter_lines():
            if line.startswith("data: "):
                assert json.loads(line[6:]) == {"items": []}
                break
