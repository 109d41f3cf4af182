"""A world of scripted backends and routers on one event loop of its own thread; tests talk to it over sockets."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import uvloop

from api.router.router import Router
from api.router.server import RouterServer
from api.router.settings import RouterConfig
from api.serve import bind
from energyopt.core.config import parse_config


@dataclass
class Seen:
    """A request as it came over the wire; header names as they were sent."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    writer: asyncio.StreamWriter
    reader: asyncio.StreamReader

    def header(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]


Answer = Callable[[Seen], Awaitable[None]]


async def say(seen: Seen, status: int = 200, body: bytes = b"{}", *headers: str) -> None:
    """Answer with a length."""
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}", *headers, "", ""]
    seen.writer.write("\r\n".join(lines).encode("latin-1") + body)
    await seen.writer.drain()


async def echo(seen: Seen) -> None:
    """The body comes back as it came."""
    await say(seen, 200, seen.body, "content-type: application/json")


@dataclass
class ScriptedBackend:
    """A server that keeps what it saw and answers by script. ``gone`` counts clients that left before an answer."""

    answer: Answer = echo
    models: list[dict[str, object]] = field(default_factory=lambda: [{"id": "m", "object": "model"}])
    health: int = 200
    events: bool = False
    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    gone: threading.Event = field(default_factory=threading.Event)
    _server: asyncio.Server | None = None
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, **options: Any) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, **options)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in self._open:
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        self.connections += 1
        try:
            while True:
                await self._one(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self._open.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in head[1:-2])]
        length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
        seen = Seen(method, target, headers, await reader.readexactly(length), writer, reader)
        if target.endswith("/health"):
            await say(seen, self.health, b"")
        elif target.endswith("/v1/models"):
            await say(seen, 200, json.dumps({"object": "list", "data": self.models}).encode())
        elif target.startswith("/kv/") and not self.events:
            await say(seen, 404)
        else:
            self.seen.append(seen)
            await self.answer(seen)


@dataclass
class RunningRouter:
    """A router that serves. ``config`` is what it was told."""

    router: Router
    server: RouterServer
    url: str
    task: asyncio.Task[None]

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, trust_env=False, timeout=20, **options)


class World:
    """Everything runs on one loop in a thread; ``do`` runs a coroutine there and returns its result."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._routers: list[RunningRouter] = []
        self._backends: list[ScriptedBackend] = []

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def backend(self, answer: Answer = echo, **fields: Any) -> ScriptedBackend:
        made = ScriptedBackend(answer, **fields)
        self.do(made.start())
        self._backends.append(made)
        return made

    def router(self, *backends: ScriptedBackend | dict[str, object], **settings: Any) -> RunningRouter:
        told = [{"url": one.url} if isinstance(one, ScriptedBackend) else one for one in backends]
        config = parse_config(
            RouterConfig, {"policy": "round-robin", "health_seconds": 60, **settings, "backends": told}
        )
        running: RunningRouter = self.do(self._start(config))
        self._routers.append(running)
        return running

    async def _start(self, config: RouterConfig) -> RunningRouter:
        listener, ready = bind("127.0.0.1", 0), asyncio.Event()
        router = Router(config)
        server = RouterServer(router, on_ready=ready.set)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        await ready.wait()
        await router.prober.once()
        return RunningRouter(router, server, f"http://127.0.0.1:{listener.getsockname()[1]}", task)

    def stop(self, running: RunningRouter) -> None:
        running.server.should_exit = True
        self.do(asyncio.wait_for(running.task, 20))

    def end(self) -> None:
        for running in self._routers:
            if not running.task.done():
                running.server.should_exit = running.server.force_exit = True
                self.do(asyncio.wait_for(running.task, 20))
        for backend in self._backends:
            self.do(backend.stop())
        self.do(self._settle())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _settle(self) -> None:
        """What the tests left behind ends before the loop does."""
        await asyncio.sleep(0.05)
        mine = asyncio.current_task()
        for task in asyncio.all_tasks():
            if task is not mine:
                task.cancel()
        await asyncio.sleep(0.05)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.end()


@pytest.fixture(scope="module")
def shared_world() -> Iterator[World]:
    """One for many examples of a property."""
    made = World()
    yield made
    made.end()
