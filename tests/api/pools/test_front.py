"""What the front does with engines that answer badly, never, or without end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from api.pools.app import PoolsFront
from api.pools.pulse import Pulse
from api.pools.workers import Pools, Role
from energyopt.core.clock import FakeClock, MonotonicClock
from energyopt.core.units import Seconds

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]
ROLES = {"prefill-0": Role.PREFILL, "decode-0": Role.DECODE, "decode-1": Role.DECODE}
BODY = json.dumps({"prompt": "x", "n": 2}).encode()  # two choices: one leg
GOOD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
STREAM = json.dumps({"prompt": "x", "n": 2, "stream": True}).encode()
LATE = b'{"error": {"message": "No token in time.", "code": "deadline_exceeded"}}'
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
ENDLESS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n"


def saying(words: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(words)

    return answer


async def cut(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


BAD = saying(b"HTTP/1.1 500 X\r\ncontent-length: 3\r\n\r\nbad")
TOO_LATE = saying(b"HTTP/1.1 504 X\r\ncontent-length: %d\r\n\r\n%b" % (len(LATE), LATE))
FULL = saying(b"HTTP/1.1 503 X\r\nretry-after: 2\r\ncontent-length: 4\r\n\r\nfull")


class Engines:
    """Scripted engines; ``asked`` names who got a request, in turn. ``left`` is set when a client of theirs goes."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self.answers = dict(answers)
        self.asked: list[str] = []
        self.left = asyncio.Event()

    def serve(self, name: str) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                    await reader.readexactly(int(length or b"0"))
                    self.asked.append(name)
                    await self.answers[name](writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                self.left.set()
            finally:
                writer.close()

        return one


@asynccontextmanager
async def fronted(**answers: Answer) -> AsyncIterator[tuple[PoolsFront, Engines]]:
    """``decode_0=...``: engines that are up, and the front over them."""
    engines = Engines({name.replace("_", "-"): answer for name, answer in answers.items()})
    clock = MonotonicClock()
    front = PoolsFront(Pools(ROLES, clock), clock)
    servers = []
    for name in engines.answers:
        server = await asyncio.start_server(engines.serve(name), "127.0.0.1", 0)
        servers.append(server)
        front.pools.up(name, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    yield front, engines
    await front.close()
    for server in servers:
        server.close()


class Call:
    """One request to the application, without a socket; ``leave`` is the client's going away."""

    def __init__(self, app: Any, method: str, path: str, body: bytes = b"") -> None:
        self.status, self.data = 0, b""
        self.news = asyncio.Event()
        self._gone = asyncio.Event()
        self._sent = False
        self._body = body
        scope: dict[str, object] = {"type": "http", "method": method, "path": path, "query_string": b""}
        scope |= {"raw_path": path.encode()}
        scope |= {"headers": [], "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": ""}
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    def leave(self) -> None:
        self._gone.set()

    async def _receive(self) -> dict[str, object]:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self.status = message.get("status", self.status)
        self.data += message.get("body", b"")
        self.news.set()


async def asked(front: PoolsFront, body: bytes = BODY) -> Call:
    call = Call(front.app, "POST", "/v1/completions", body)
    await asyncio.wait_for(call.task, 20)
    return call


async def test_an_answer_without_an_end_comes_as_it_comes_and_ends_with_its_client() -> None:
    async with fronted(decode_0=saying(ENDLESS)) as (front, engines):
        call = Call(front.app, "GET", "/kv/events")
        while call.data != b"hello":
            await asyncio.wait_for(call.news.wait(), 10)
            call.news.clear()
        assert not any(worker.legs.total() for worker in front.pools.workers)
        call.leave()
        await asyncio.wait_for(call.task, 10)
        await asyncio.wait_for(engines.left.wait(), 10)


async def test_what_is_no_leg_says_nothing_of_an_engines_rate() -> None:
    async with fronted(decode_0=saying(GOOD)) as (front, _):
        call = Call(front.app, "GET", "/v1/models")
        await asyncio.wait_for(call.task, 10)
        assert (call.status, call.data) == (200, b"{}")
        assert not any(worker.served.total() for worker in front.pools.workers)


async def test_a_request_that_no_engine_can_do_gets_the_engines_own_answer() -> None:
    async with fronted(decode_0=BAD, decode_1=BAD) as (front, engines):
        call = await asked(front)
        assert (call.status, call.data) == (500, b"bad")
        assert len(engines.asked) == 4
        assert not any(worker.served.total() for worker in front.pools.workers)


async def test_a_request_that_ends_every_engine_is_given_up() -> None:
    async with fronted(decode_0=cut, decode_1=cut) as (front, engines):
        front.pools.shun = lambda worker: None  # type: ignore[method-assign]  # they are up again at once
        call = await asked(front)
        assert call.status == 503
        assert b"one after the other" in call.data
        assert 6 <= len(engines.asked) <= 12  # the client library tries a kept connection anew by itself


async def test_who_has_no_place_is_passed_over_by_who_heard_it() -> None:
    """It may have a place for the next request."""
    async with fronted(decode_0=FULL, decode_1=saying(GOOD)) as (front, engines):
        for _ in range(2):
            call = await asked(front)
            assert (call.status, call.data) == (200, b"{}")
        assert engines.asked == ["decode-0", "decode-1"] * 2
        assert [worker.served.total() for worker in front.pools.workers] == [0, 0, 2]


async def test_if_all_broke_off_one_is_asked_rather_than_none() -> None:
    async with fronted(decode_0=saying(GOOD)) as (front, _):
        front.pools.shun(front.pools.workers[1])
        call = Call(front.app, "GET", "/v1/models")
        await asyncio.wait_for(call.task, 10)
        assert call.status == 200


@pytest.mark.parametrize("body", [BODY, STREAM, json.dumps({"prompt": "x"}).encode()])
async def test_a_clients_own_time_limit_ends_one_engines_work_and_blames_it_not(body: bytes) -> None:
    """The last of the bodies has a prefill leg, in which it ends."""
    async with fronted(prefill_0=TOO_LATE, decode_0=TOO_LATE, decode_1=TOO_LATE) as (front, engines):
        call = await asked(front, body)
        assert (call.status, call.data) == (504, LATE)
        assert len(engines.asked) == 1
        assert not any(worker.shunned_until for worker in front.pools.workers)
        assert not front.counts["decode_retries"]


async def test_a_stream_whose_second_try_is_refused_ends_with_the_words_of_that() -> None:
    begun = asyncio.Event()

    async def half(writer: asyncio.StreamWriter) -> None:
        writer.write(EVENTS + b"12\r\ndata: first half\n\n\r\n")
        await begun.wait()
        writer.transport.abort()

    async with fronted(decode_0=half, decode_1=TOO_LATE) as (front, engines):
        call = Call(front.app, "POST", "/v1/completions", STREAM)
        while not call.data:
            await asyncio.wait_for(call.news.wait(), 10)
            call.news.clear()
        begun.set()
        await asyncio.wait_for(call.task, 10)
        assert (call.status, call.data) == (200, b"data: first half\n\nevent: error\ndata: " + LATE + b"\n\n")
        assert engines.asked == ["decode-0", "decode-1"]


class Statuses(PoolsFront):
    """A front whose engines answer as told: a status, or None for silence."""

    def __init__(self, clock: FakeClock, statuses: Mapping[str, int | None]) -> None:
        super().__init__(Pools(ROLES, clock), clock)
        self.statuses = dict(statuses)
        for name in ROLES:
            self.pools.up(name, f"http://{name}")

    async def status_of(self, url: str, path: str, patience: float) -> int | None:
        return self.statuses[url.removeprefix("http://")]


@pytest.mark.parametrize("status", [503, None])
async def test_engines_that_are_dead_or_silent_are_reported_once(status: int | None) -> None:
    clock, dead = FakeClock(), list[tuple[str, str]]()
    front = Statuses(clock, {"prefill-0": 200, "decode-0": status, "decode-1": 200})
    pulse = Pulse(front, clock, lambda name, why: dead.append((name, why)), silence=60.0)
    await pulse.once()
    if status is None:
        assert not dead
        front.statuses["decode-0"] = 200  # it was only slow
        clock.sleep(Seconds(59.0))
        await pulse.once()
        front.statuses["decode-0"] = None
        await pulse.once()
        clock.sleep(Seconds(59.0))
        await pulse.once()
        assert not dead
        clock.sleep(Seconds(2.0))
        await pulse.once()
    await pulse.once()
    assert dead == [("decode-0", "says that it is dead" if status else "has said nothing for 60 s")]
    assert [worker.url is None for worker in front.pools.workers] == [False, True, False]
