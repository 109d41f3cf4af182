"""Backends that are down, slow, full, broken or leaving: what clients see of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from api.router.router import Router
from api.router.settings import RouterConfig
from energyopt.core.config import parse_config

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


async def overloaded(seen: Any) -> None:
    seen.writer.write(b"HTTP/1.1 503 X\r\nretry-after: 7\r\ncontent-length: 4\r\n\r\nfull")


async def cut(seen: Any) -> None:
    seen.writer.transport.abort()


def answering(status: int) -> Any:
    async def answer(seen: Any) -> None:
        seen.writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n" % status)

    return answer


class Gate:
    """Backends that answer when they are told to."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.waiting = 0

    async def __call__(self, seen: Any) -> None:
        self.waiting += 1
        await self.open.wait()
        seen.writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    async def release(self) -> None:
        self.open.set()


def eventually(condition: Any) -> None:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < 10, "it did not happen in time"
        time.sleep(0.005)


@pytest.mark.parametrize("bad", [overloaded, cut, answering(502), answering(504), answering(429)])
def test_another_backend_answers_what_one_did_not(world: Any, bad: Any) -> None:
    first, second = world.backend(bad), world.backend()
    router = world.router(first, second)
    with router.client() as http:
        replies = [http.post("/v1/completions", json=CHAT) for _ in range(4)]
    assert {reply.status_code for reply in replies} == {200}
    assert len(second.seen) == 4
    assert 1 <= router.router.counts.retries[router.router.fleet.backends[0].name] <= len(first.seen)
    assert router.router.fleet.running == 0


def test_a_clients_own_time_limit_ends_one_backends_work_and_blames_it_not(world: Any) -> None:
    """Its answer comes whole, also where it comes slowly."""
    words = b'{"error": {"message": "No token in time.", "code": "deadline_exceeded"}}'

    async def late(seen: Any) -> None:
        seen.writer.write(b"HTTP/1.1 504 X\r\ncontent-length: %d\r\n\r\n%b" % (len(words), words[:10]))
        await seen.writer.drain()
        await asyncio.sleep(0.02)
        seen.writer.write(words[10:])

    backends = [world.backend(late), world.backend(late)]
    router = world.router(*backends, eject_after=1)
    with router.client() as http:
        for _ in range(4):
            reply = http.post("/v1/completions", json=CHAT)
            assert (reply.status_code, reply.content) == (504, words)
        states = [one["state"] for one in http.get("/router/backends").json()["backends"]]
    assert states == ["up", "up"]
    assert [len(backend.seen) for backend in backends] == [2, 2]


def test_a_backend_that_is_not_there_costs_a_client_nothing(world: Any) -> None:
    backend = world.backend()
    router = world.router({"url": "http://127.0.0.1:9"}, backend, {"url": "http://no-such-host.invalid"})
    with router.client() as http:
        assert [http.post("/v1/completions", json=CHAT).status_code for _ in range(6)] == [200] * 6
        states = [one["state"] for one in http.get("/router/backends").json()["backends"]]
    assert states == ["down", "up", "down"]


def test_when_all_are_overloaded_the_last_answer_passes_whole(world: Any) -> None:
    router = world.router(world.backend(overloaded), world.backend(overloaded))
    with router.client() as http:
        reply = http.post("/v1/completions", json=CHAT)
    assert (reply.status_code, reply.content, reply.headers["retry-after"]) == (503, b"full", "7")


def test_errors_that_concern_the_request_are_not_tried_elsewhere(world: Any) -> None:
    backends = [world.backend(answering(400)), world.backend(answering(400))]
    router = world.router(*backends)
    with router.client() as http:
        assert http.post("/v1/completions", json=CHAT).status_code == 400
    assert sum(len(backend.seen) for backend in backends) == 1


def test_nothing_is_tried_again_once_a_byte_was_answered(world: Any) -> None:
    async def half(seen: Any) -> None:
        seen.writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
        await seen.writer.drain()
        await asyncio.sleep(0.05)
        seen.writer.transport.abort()

    backends = [world.backend(half), world.backend(half)]
    router = world.router(*backends)
    with router.client() as http, pytest.raises(httpx.HTTPError):
        http.post("/v1/completions", json=CHAT)
    assert sum(len(backend.seen) for backend in backends) == 1
    assert router.router.fleet.running == 0


def test_a_stream_that_breaks_off_ends_with_an_error_and_without_done(world: Any) -> None:
    async def half(seen: Any) -> None:
        seen.writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        seen.writer.write(b"a\r\ndata: {}\n\n\r\n")
        await seen.writer.drain()
        await asyncio.sleep(0.05)
        seen.writer.transport.abort()

    router = world.router(world.backend(half))
    with router.client() as http:
        text = http.post("/v1/chat/completions", json=CHAT).text
    assert text.startswith("data: {}\n\n")
    assert "event: error\ndata: " in text
    assert "DONE" not in text


def test_a_backend_that_fails_in_a_row_is_left_alone_for_a_while(world: Any) -> None:
    bad, good = world.backend(cut), world.backend()
    router = world.router(bad, good, eject_after=2, eject_seconds=0.3)
    with router.client() as http:
        for _ in range(8):
            assert http.post("/v1/completions", json=CHAT).status_code == 200
        known = len(bad.seen)
        for _ in range(4):
            assert http.post("/v1/completions", json=CHAT).status_code == 200
        assert len(bad.seen) == known >= 2  # one request may use up several kept connections
        assert http.get("/router/backends").json()["backends"][0]["state"] == "ejected"
        assert f'ejections_total{{backend="{router.router.fleet.backends[0].name}"}} 1.0' in http.get("/metrics").text
        time.sleep(0.35)
        bad.answer = good.answer
        for _ in range(4):
            http.post("/v1/completions", json=CHAT)
        assert len(bad.seen) > known


def test_if_all_are_ejected_they_are_tried_rather_than_nobody(world: Any) -> None:
    bad = world.backend(cut)
    router = world.router(bad, eject_after=1, eject_seconds=60)
    with router.client() as http:
        assert [http.post("/v1/completions", json=CHAT).status_code for _ in range(2)] == [502, 502]
        bad.answer = answering(200)
        assert http.post("/v1/completions", json=CHAT).status_code == 200


def test_health_follows_the_probes(world: Any) -> None:
    backend = world.backend()
    router = world.router(backend, health_seconds=0.05)
    with router.client() as http:
        assert http.get("/health").status_code == 200
        backend.health = 503
        eventually(lambda: http.get("/health").status_code == 503)
        reply = http.post("/v1/completions", json=CHAT)
        assert reply.status_code == 503
        assert int(reply.headers["retry-after"]) >= 1
        assert "No backend is healthy" in reply.json()["error"]["message"]
        backend.health = 404  # an endpoint without /health lives if its models can be listed
        eventually(lambda: http.get("/health").status_code == 200)


async def test_until_the_first_probe_nobody_is_healthy_and_models_wait() -> None:
    router = Router(parse_config(RouterConfig, {"backends": [{"url": "http://a:1"}, {"url": "http://b:1"}]}))
    first, second = router.fleet.backends

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=router.app), base_url="http://r") as http:
        early = await http.get("/health")
        assert (early.status_code, "has said yet" in early.text) == (503, True)
        asked = asyncio.create_task(http.get("/v1/models"))
        first.models, second.models = {"m": {"id": "m"}}, {"n": {"id": "n"}}
        first.probed.set()
        assert (await http.get("/health")).status_code == 200
        assert not asked.done()
        second.probed.set()
        assert [one["id"] for one in (await asked).json()["data"]] == ["m", "n"]


def test_a_full_fleet_lets_requests_wait_in_their_order_and_refuses_what_is_too_much(world: Any) -> None:
    gate = Gate()
    backend = world.backend(gate)
    limit = {"url": backend.url, "max_concurrency": 2}
    router = world.router(limit, max_queue=3)
    with router.client() as http, ThreadPoolExecutor(8) as pool:

        def ask(number: int) -> int:
            return int(http.post("/v1/completions", content=b'{"n": %d}' % number).status_code)

        asked = []
        for number in range(5):
            asked.append(pool.submit(ask, number))
            eventually(lambda: router.router.fleet.running + router.router.fleet.queued == len(asked))
        assert (gate.waiting, router.router.fleet.queued) == (2, 3)
        refused = http.post("/v1/completions", json=CHAT)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert "max_queue" in refused.json()["error"]["message"]
        world.do(gate.release())
        assert [one.result(10) for one in asked] == [200] * 5
    assert [seen.body for seen in backend.seen] == [b'{"n": %d}' % number for number in range(5)]
    assert router.router.fleet.running == router.router.fleet.queued == 0
    assert router.router.counts.refused == {"full": 1}


def test_waiting_ends(world: Any) -> None:
    gate = Gate()
    router = world.router({"url": world.backend(gate).url, "max_concurrency": 1}, queue_seconds=0.1)
    with router.client() as http, ThreadPoolExecutor(1) as pool:
        first = pool.submit(http.post, "/v1/completions", json=CHAT)
        eventually(lambda: gate.waiting == 1)
        late = http.post("/v1/completions", json=CHAT)
        assert late.status_code == 503
        assert "queue_seconds" in late.json()["error"]["message"]
        with pytest.raises(httpx.ReadTimeout):
            http.post("/v1/completions", json=CHAT, timeout=0.03)  # one that leaves the queue by itself
        world.do(gate.release())
        assert first.result(10).status_code == 200
    eventually(lambda: router.router.fleet.running == 0)


def test_a_silent_backend_is_given_up(world: Any) -> None:
    gate = Gate()
    router = world.router(world.backend(gate), silence_seconds=0.2, retries=0)
    with router.client() as http:
        reply = http.post("/v1/completions", json=CHAT)
    assert reply.status_code == 502
    assert "said nothing for 0.2 s" in reply.json()["error"]["message"]
    world.do(gate.release())


def test_a_drained_backend_ends_what_it_has_and_gets_nothing_new(world: Any) -> None:
    gate = Gate()
    leaving, staying = world.backend(gate), world.backend()
    router = world.router({"url": leaving.url, "name": "leaving"}, {"url": staying.url, "name": "staying"})
    with router.client() as http, ThreadPoolExecutor(1) as pool:
        running = pool.submit(http.post, "/v1/completions", json=CHAT)
        eventually(lambda: gate.waiting == 1)
        page = http.post("/router/drain", json={"backend": "leaving"}).json()
        assert [one["state"] for one in page["backends"]] == ["draining", "up"]
        assert [http.post("/v1/completions", json=CHAT).status_code for _ in range(3)] == [200] * 3
        assert len(staying.seen) == 3
        world.do(gate.release())
        assert running.result(10).status_code == 200
        http.post("/router/resume", json={"backend": "leaving"})
        for _ in range(2):
            http.post("/v1/completions", json=CHAT)
        assert len(leaving.seen) == 2
        unknown = http.post("/router/drain", json={"backend": "nobody"})
        assert unknown.status_code == 404
        assert "leaving, staying" in unknown.json()["error"]["message"]
        assert http.post("/router/drain", content=b"[1]").status_code == 400


def test_a_drained_router_says_so(world: Any) -> None:
    router = world.router(world.backend())
    with router.client() as http:
        http.post("/router/drain")
        assert http.get("/health").status_code == 503
        refused = http.post("/v1/completions", json=CHAT)
        assert (refused.status_code, "drains" in refused.text) == (503, True)
        http.post("/router/resume")
        assert http.post("/v1/completions", json=CHAT).status_code == 200
    assert router.router.counts.refused == {"draining": 1}


def test_stopping_lets_running_requests_end(world: Any) -> None:
    gate = Gate()
    router = world.router(world.backend(gate))
    with router.client() as http, ThreadPoolExecutor(1) as pool:
        running = pool.submit(http.post, "/v1/completions", json=CHAT)
        eventually(lambda: gate.waiting == 1)
        stopping = threading.Thread(target=world.stop, args=(router,))
        stopping.start()
        time.sleep(0.1)
        world.do(gate.release())
        assert running.result(10).status_code == 200
        stopping.join(10)
        with pytest.raises(httpx.HTTPError):
            http.get("/health")


def test_what_outlives_the_grace_gets_an_error_instead_of_silence(world: Any) -> None:
    gate = Gate()
    router = world.router(world.backend(gate), grace_seconds=0.2)
    with router.client() as http, ThreadPoolExecutor(1) as pool:
        running = pool.submit(http.post, "/v1/completions", json=CHAT)
        eventually(lambda: gate.waiting == 1)
        world.stop(router)
        reply = running.result(10)
    assert reply.status_code in (502, 503)
    assert "The router ends" in reply.text
    world.do(gate.release())


def test_metrics_count_what_happened(world: Any) -> None:
    router = world.router({"url": world.backend().url, "name": "one"}, policy="prefix")
    body = {"model": "m", "prompt": "x" * 2048}
    with router.client() as http:
        for _ in range(3):
            http.post("/v1/completions", json=body)
        text = http.get("/metrics").text
    expected: Counter[str] = Counter()
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("energyopt_router_"):
            expected[name] = float(value)  # type: ignore[assignment]
    assert expected['energyopt_router_requests_total{backend="one",outcome="200"}'] == 3
    assert expected['energyopt_router_prompt_tokens_total{backend="one"}'] == 3 * 512
    assert expected['energyopt_router_hit_tokens_total{backend="one"}'] == 2 * 512
    assert expected["energyopt_router_delay_seconds_count"] == 3
    assert expected['energyopt_router_first_byte_seconds_count{backend="one"}'] == 3
    assert expected['energyopt_router_backend_up{backend="one"}'] == 1
