"""What goes through the router: every byte, in both directions, as it comes."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Any

import httpx
import pytest

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def connected(router: Any) -> socket.socket:
    host, port = router.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def test_a_body_passes_as_it_is(world: Any) -> None:
    backend = world.backend()
    router = world.router(backend)
    raw = b'{ "model":"m",\t"messages":[{"role":"critic","content":null,"reasoning_content":"because",' + (
        b'"tool_calls":[{"id":"functions.f:0","function":{"name":"f","arguments":"{ \\"a\\": 1.0 }"}}]}],'
        b'"kv_transfer_params":{"do_remote_decode":true},"unknown":1e400,"dup":1,"dup":2}\n'
    )
    headers = {"x-data-parallel-rank": "3", "X-Request-Id": "mine", "cookie": "a=b", "accept-encoding": "br"}
    with router.client() as http:
        reply = http.post("/v1/chat/completions?a=%20b&c", content=raw, headers=headers)
    (seen,) = backend.seen
    assert seen.body == raw
    assert reply.content == raw
    assert (seen.method, seen.target) == ("POST", "/v1/chat/completions?a=%20b&c")
    assert seen.header("x-data-parallel-rank") == ["3"]
    assert seen.header("x-request-id") == ["mine"]
    assert seen.header("cookie") == ["a=b"]
    assert seen.header("accept-encoding") == ["br"]
    assert seen.header("host") == [backend.url.removeprefix("http://")]


def test_lines_that_speak_of_one_connection_stay_there(world: Any) -> None:
    async def answer(seen: Any) -> None:
        seen.writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: x-hop, keep-alive\r\nX-Hop: 1\r\n"
            b"Keep-Alive: timeout=9\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nDate: then\r\nServer: theirs\r\n\r\n{}"
        )

    backend = world.backend(answer)
    router = world.router(backend)
    headers = {"connection": "x-mine, keep-alive", "x-mine": "1", "te": "trailers", "upgrade": "h2c", "x-kept": "1"}
    with router.client() as http:
        reply = http.post("/v1/completions", json=CHAT, headers=headers)
    (seen,) = backend.seen
    assert not {"x-mine", "te", "upgrade", "connection"} & {name.lower() for name, _ in seen.headers}
    assert seen.header("x-kept") == ["1"]
    assert "x-hop" not in reply.headers
    assert "keep-alive" not in reply.headers
    assert reply.headers.get_list("set-cookie") == ["a=1", "b=2"]
    assert (reply.headers["date"], reply.headers["server"]) == ("then", "theirs")


def test_a_stream_arrives_piece_by_piece(world: Any) -> None:
    asked: list[asyncio.Event] = []

    async def answer(seen: Any) -> None:
        step = asyncio.Event()
        asked.append(step)
        seen.writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for number in range(3):
            seen.writer.write(b"9\r\ndata: %d\n\n\r\n" % number)
            await step.wait()
            step.clear()
        seen.writer.write(b"0\r\n\r\n")

    async def go_on() -> None:
        asked[0].set()

    router = world.router(world.backend(answer))
    with router.client() as http, http.stream("POST", "/v1/chat/completions", json=CHAT) as reply:
        pieces = reply.iter_raw()
        for number in range(3):
            assert next(pieces) == b"data: %d\n\n" % number  # the backend says no more before we have read this
            world.do(go_on())
        assert list(pieces) == []


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\ntrailer: t\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
        b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
    ],
    ids=["length", "chunked", "close", "1.0", "early hints"],
)
def test_every_framing_of_an_answer_is_understood(world: Any, wire: bytes) -> None:
    async def answer(seen: Any) -> None:
        for byte in wire:
            seen.writer.write(bytes([byte]))
            await seen.writer.drain()
        if b"length" not in wire and b"chunked" not in wire:
            seen.writer.close()

    router = world.router(world.backend(answer))
    with router.client() as http:
        for _ in range(2):
            reply = http.post("/v1/completions", json=CHAT)
            assert (reply.status_code, reply.content) == (200, b"hello")


@pytest.mark.parametrize("status", [204, 304])
def test_answers_without_a_body(world: Any, status: int) -> None:
    async def answer(seen: Any) -> None:
        seen.writer.write(b"HTTP/1.1 %d X\r\n\r\n" % status)

    router = world.router(world.backend(answer))
    with router.client() as http:
        assert [http.get("/v1/files/1").status_code for _ in range(2)] == [status, status]
        assert http.head("/v1/files/1").status_code == status


def test_connections_are_kept_and_one_that_was_closed_meanwhile_does_no_harm(world: Any) -> None:
    backend = world.backend()
    router = world.router(backend)

    async def drop() -> None:
        await backend.stop()
        await backend.start()

    with router.client() as http:
        before = backend.connections
        for _ in range(5):
            assert http.post("/v1/completions", json=CHAT).status_code == 200
        assert backend.connections <= before + 1
        world.do(drop())
        assert http.post("/v1/completions", json=CHAT).status_code == 200
    assert router.router.counts.retries == {}


def test_a_client_that_leaves_takes_its_request_along(world: Any) -> None:
    left = asyncio.Event()

    async def answer(seen: Any) -> None:
        seen.writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n")
        await seen.reader.read()
        left.set()

    async def wait() -> None:
        await asyncio.wait_for(left.wait(), 5)
        await asyncio.sleep(0.05)

    router = world.router(world.backend(answer))
    with router.client() as http, http.stream("POST", "/v1/chat/completions", json=CHAT) as reply:
        next(reply.iter_raw())
    world.do(wait())
    assert router.router.fleet.running == 0
    assert router.router.counts.requests == {(router.router.fleet.backends[0].name, "gone"): 1}


def test_a_client_that_leaves_before_the_first_byte_too(world: Any) -> None:
    left = asyncio.Event()

    async def answer(seen: Any) -> None:
        await seen.reader.read()
        left.set()

    router = world.router(world.backend(answer))
    with router.client() as http, pytest.raises(httpx.ReadTimeout):
        http.post("/v1/chat/completions", json=CHAT, timeout=0.2)
    world.do(asyncio.wait_for(left.wait(), 5))


def test_a_slow_client_holds_the_backend_back(world: Any) -> None:
    """Of 64 MB that a backend would send, only buffers' worth leaves it while nobody reads."""
    sent = 0

    async def answer(seen: Any) -> None:
        nonlocal sent
        seen.writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 67108864\r\n\r\n")
        for _ in range(1024):
            seen.writer.write(b"x" * 65536)
            await seen.writer.drain()
            sent += 65536

    router = world.router(world.backend(answer))
    host, port = router.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
        time.sleep(0.5)
        assert 0 < sent < 32 * 2**20
        held, got = sent, 0
        while got < 2**26:
            got += len(client.recv(2**20))
    assert sent > held


def test_keys(world: Any) -> None:
    own, plain = world.backend(), world.backend()
    router = world.router({"url": own.url, "api_key": "theirs"}, plain)
    with router.client(headers={"authorization": "Bearer mine"}) as http:
        for _ in range(2):
            http.post("/v1/completions", json=CHAT)
    assert own.seen[0].header("authorization") == ["Bearer theirs"]
    assert plain.seen[0].header("authorization") == ["Bearer mine"]


def test_the_routers_own_key_is_asked_for_and_goes_no_further(world: Any) -> None:
    backend = world.backend()
    router = world.router(backend, api_key="secret")
    with router.client() as http:
        assert http.post("/v1/completions", json=CHAT).status_code == 401
        assert http.get("/router/backends", headers={"authorization": "Bearer wrong"}).status_code == 401
        assert http.get("/health").status_code == 200
        assert http.get("/metrics").status_code == 200
        reply = http.post("/v1/completions", json=CHAT, headers={"authorization": "Bearer secret"})
    assert reply.status_code == 200
    assert backend.seen[0].header("authorization") == []


def test_too_much_is_refused(world: Any) -> None:
    backend = world.backend()
    router = world.router(backend, max_body_bytes=1000, max_header_bytes=2000)
    with router.client() as http:
        assert http.post("/v1/completions", content=b"x" * 1001).status_code == 413
        assert http.post("/v1/completions", content=iter([b"x" * 600] * 2)).status_code == 413
        assert http.post("/v1/completions", content=b"x" * 1000).status_code == 200
        assert http.post("/v1/completions", json=CHAT, headers={"x": "y" * 2000}).status_code == 431
    with connected(router) as client:
        client.sendall(b"GET /v1/models HTTP/1.1\r\nx: " + b"y" * 3000)  # a line that does not end
        assert client.recv(100).startswith(b"HTTP/1.1 431 ")
    assert len(backend.seen) == 1


def said(client: socket.socket) -> bytes:
    """All that comes until the connection ends, well or badly."""
    words = b""
    try:
        while more := client.recv(1000):
            words += more
    except ConnectionResetError:
        pass
    return words


ONE = b"POST /v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\na"
LONG = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 3000 + b"\r\n\r\n"


@pytest.mark.parametrize("bad", [b"\0\0\r\n\r\n", b"GET http://[ HTTP/1.1\r\n\r\n", LONG])
@pytest.mark.parametrize("begun", [True, False])
def test_what_is_wrong_behind_a_request_is_no_part_of_its_answer(world: Any, bad: bytes, begun: bool) -> None:
    async def answer(seen: Any) -> None:
        if begun:
            seen.writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n")
        await seen.reader.read()

    backend = world.backend(answer)
    with connected(world.router(backend, max_header_bytes=2000)) as client:
        client.sendall(ONE)
        words = b""
        while b"one" not in words if begun else not backend.seen:
            words += client.recv(1000) if begun else b""
        client.sendall(bad)
        words += said(client)
    assert words.count(b"HTTP/1.1") == (1 if begun else 0)
    assert words.endswith(b"3\r\none\r\n" if begun else b"")


@pytest.mark.parametrize("before", [b"", b"POST /v1/x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"])
def test_what_is_no_request_is_told_so(world: Any, before: bytes) -> None:
    backend = world.backend()
    with connected(world.router(backend)) as client:
        client.sendall(before + b"\0\0\r\n\r\n")
        head, _, body = said(client).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["message"] == "This is no valid HTTP request."
    assert not backend.seen


@pytest.mark.parametrize("bad", [LONG, b"\0\0\r\n\r\n"])
def test_nothing_is_served_behind_a_request_that_was_refused(world: Any, bad: bytes) -> None:
    router, served = world.router(world.backend(), max_header_bytes=2000), list[str]()
    app = router.server.config.loaded_app

    async def noted(scope: Any, receive: Any, send: Any) -> None:
        served.append(scope["path"])
        await app(scope, receive, send)

    router.server.config.loaded_app = noted
    with connected(router) as client:
        client.sendall(bad + b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert said(client).count(b"HTTP/1.1") == 1
    assert not served


HALF = b"POST /v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nab"


@pytest.mark.parametrize(("sent", "late"), [(b"", "headers"), (b"GET /v1/mod", "headers"), (HALF, "body")])
def test_who_does_not_go_on_is_not_waited_for(world: Any, sent: bytes, late: str) -> None:
    backend = world.backend()
    with connected(world.router(backend, head_seconds=0.05, body_seconds=0.05)) as client:
        client.sendall(sent)
        head, _, body = said(client).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert late in json.loads(body)["error"]["message"]
    assert not backend.seen


def test_who_waits_for_an_answer_may_be_slow_with_the_next_request(world: Any) -> None:
    async def answer(seen: Any) -> None:
        await asyncio.sleep(0.2)
        seen.writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\none")

    with connected(world.router(world.backend(answer), head_seconds=0.05)) as client:
        client.sendall(ONE + b"GET /v1/mod")
        words = said(client)
    assert words.startswith(b"HTTP/1.1 200 ")
    assert b"oneHTTP/1.1 408 " in words


def test_unknown_paths_are_named(world: Any) -> None:
    router = world.router(world.backend())
    with router.client() as http:
        for path in ("/shutdown", "/reset_prefix_cache", "/"):
            reply = http.post(path)
            assert reply.status_code == 404
            assert path in reply.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/../admin", "/v1/%2e%2e/admin", "/v1/x/..", "/v1/..%5cadmin"])
def test_a_path_that_climbs_out_of_what_is_forwarded_goes_nowhere(world: Any, path: str) -> None:
    backend = world.backend()
    router = world.router(backend)
    with connected(router) as client:
        client.sendall(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}" % path.encode())
        assert client.recv(100).startswith(b"HTTP/1.1 404 ")
    assert not backend.seen


def test_requests_sent_ahead_get_their_own_answers_in_order(world: Any) -> None:
    """Two on one connection, the second before the first is answered: each answer is framed as its own."""
    first = asyncio.Event()

    async def answer(seen: Any) -> None:
        seen.writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        if seen.body == b"a":
            seen.writer.write(b"3\r\none\r\n")
            await first.wait()
        seen.writer.write(b"3\r\ntwo\r\n0\r\n\r\n")

    async def go_on() -> None:
        first.set()

    backend = world.backend(answer)
    with connected(world.router(backend)) as client:
        one = b"POST /v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n"
        client.sendall(one + b"a" + one + b"b")
        said = client.recv(1000)
        while b"one" not in said:
            said += client.recv(1000)
        world.do(go_on())
        while said.count(b"0\r\n\r\n") < 2:
            said += (more := client.recv(1000))
            assert more
    bodies = [part.partition(b"\r\n\r\n")[2] for part in said.split(b"HTTP/1.1 200 OK")[1:]]
    assert bodies == [b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n", b"3\r\ntwo\r\n0\r\n\r\n"]


def test_who_sent_ahead_and_left_takes_both_requests_along(world: Any) -> None:
    async def never(seen: Any) -> None:
        await seen.reader.read()
        backend.gone.set()

    backend = world.backend(never)
    with connected(world.router(backend)) as client:
        one = b"POST /v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\na"
        client.sendall(one + one)
        while not backend.seen:
            time.sleep(0.002)
    assert backend.gone.wait(5)


def test_a_connection_whose_request_was_not_taken_whole_is_not_used_again(world: Any) -> None:
    """The backend answers before it has read all: what it did not read must not be the next request's beginning."""
    connections: list[int] = []

    async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        posts = 0
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
                break
            posts += head.startswith(b"POST")
            writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n" % (413 if posts else 200))
            if posts:
                connections.append(posts)
                await asyncio.sleep(0.2)
        writer.close()

    async def start() -> asyncio.Server:
        return await asyncio.start_server(hasty, "127.0.0.1", 0)

    async def stop() -> None:
        server.close()

    server = world.do(start())
    router = world.router({"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"})
    with router.client() as http:
        for _ in range(2):
            assert http.post("/v1/x", content=b"x" * 2**24).status_code == 413
    world.do(stop())
    assert connections == [1, 1]


def test_models_are_merged_with_all_that_backends_say_of_them(world: Any) -> None:
    first = world.backend(models=[{"id": "a", "max_model_len": 5, "new": {"field": 1}}, {"id": "both", "of": 1}])
    second = world.backend(models=[{"id": "both", "of": 2}, {"id": "c"}])
    router = world.router(first, second)
    with router.client() as http:
        merged = http.get("/v1/models").json()
        for model in ("a", "c", "c", "a"):
            http.post("/v1/completions", json={"model": model, "prompt": "x"})
    expected = [{"id": "a", "max_model_len": 5, "new": {"field": 1}}, {"id": "both", "of": 1}, {"id": "c"}]
    assert merged == {"object": "list", "data": expected}
    assert [json.loads(seen.body)["model"] for seen in first.seen] == ["a", "a"]
    assert [json.loads(seen.body)["model"] for seen in second.seen] == ["c", "c"]
