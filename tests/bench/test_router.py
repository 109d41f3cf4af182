"""What the router costs: requests and chunks per second of one core, and what it adds to the first byte."""

from __future__ import annotations

import asyncio
import json
import os
import random
import runpy
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvloop

from tests.bench.figures import Report

pytestmark = pytest.mark.bench
PARTS = Path(__file__).with_name("router_parts.py")
COMMAND = "from energyopt.cli.main import main; main()"


@dataclass(frozen=True)
class Load:
    """``streams`` at a time, each of ``chunks``, one every ``every`` seconds."""

    streams: int
    chunks: int
    every: float


STEADY = Load(200, 40, 0.05)
FLOOD = Load(100, 200, 0.004)
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "word " * 400}] * 4}).encode()


def _show(figure: str) -> None:
    print(f"\n{figure}")  # noqa: T201 - a bench exists to print its figures


@dataclass(frozen=True)
class Process:
    """A server of its own process."""

    pid: int
    port: int

    def cpu(self) -> float:
        """Processor seconds of its main thread."""
        return int(Path(f"/proc/{self.pid}/task/{self.pid}/schedstat").read_text().split()[0]) / 1e9


@contextmanager
def running(command: list[str], *, is_router: bool = False) -> Iterator[Process]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        try:
            assert child.stdout is not None
            if is_router:
                state = json.loads("".join(iter(child.stdout.readline, "}\n")) + "}")
                port = int(state["url"].rsplit(":", 1)[1])
            else:
                port = int(child.stdout.readline())
            yield Process(child.pid, port)
        finally:
            child.terminate()


def router_command(port: int) -> list[str]:
    options = ["--backend", f"http://127.0.0.1:{port}", "--policy", "session", "--port", "0", "--json"]
    return [sys.executable, "-P", "-c", COMMAND, "router", *options]


@pytest.fixture(scope="module")
def engine() -> Iterator[Process]:
    with running([sys.executable, str(PARTS), "engine"]) as process:
        yield process


@pytest.fixture(scope="module")
def router(engine: Process) -> Iterator[Process]:
    with running(router_command(engine.port), is_router=True) as process:
        yield process


@pytest.fixture(scope="module")
def plain(engine: Process) -> Iterator[Process]:
    with running([sys.executable, str(PARTS), "proxy", f"http://127.0.0.1:{engine.port}"]) as process:
        yield process


class Client(asyncio.Protocol):
    """One connection; ``ask`` returns seconds to the first byte of the body's content, and when all has come."""

    def __init__(self) -> None:
        self._first = 0.0
        self._mark = self._seen = b""
        self._done: asyncio.Future[None] | None = None
        self._end = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    async def ask(self, request: bytes, mark: bytes, end: bytes) -> float:
        self._first, self._mark, self._end, self._seen = 0.0, mark, end, b""
        self._done = asyncio.get_running_loop().create_future()
        start = time.perf_counter()
        self.transport.write(request)
        await self._done
        return self._first - start

    def data_received(self, data: bytes) -> None:
        if not self._first and self._mark in data:
            self._first = time.perf_counter()
        self._seen = self._seen[-8:] + data
        if self._seen.endswith(self._end) and self._done is not None and not self._done.done():
            self._done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError("the server closed the connection"))


def request(number: int, load: Load | None = None) -> bytes:
    stream = b"x-chunks: %d\r\nx-every: %g\r\n" % (load.chunks, load.every) if load else b""
    lines = b"host: x\r\nx-session-affinity: s%d\r\ncontent-type: application/json\r\n" % number
    return b"POST /v1/chat/completions HTTP/1.1\r\n%b%bcontent-length: %d\r\n\r\n%b" % (lines, stream, len(BODY), BODY)


async def plainly(port: int, clients: int, each: int) -> float:
    """Whole answers, one after the other on each connection; returns seconds."""
    loop = asyncio.get_running_loop()

    async def one(number: int) -> None:
        transport, client = await loop.create_connection(Client, "127.0.0.1", port)
        for _ in range(each):
            await client.ask(request(number), b"200 OK", b'"}}]}')
        transport.close()

    start = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(clients)))
    return time.perf_counter() - start


async def streaming(port: int, load: Load, each: int) -> list[float]:
    """Each stream ``each`` times, begun at different times; returns seconds to each first chunk."""
    loop, chance = asyncio.get_running_loop(), random.Random(5)
    firsts: list[float] = []

    async def one(number: int, offset: float) -> None:
        transport, client = await loop.create_connection(Client, "127.0.0.1", port)
        await asyncio.sleep(offset)
        asked = request(number, load)
        firsts.extend([await client.ask(asked, b"data:", b"0\r\n\r\n") for _ in range(each)])
        transport.close()

    length = load.chunks * load.every
    await asyncio.gather(*(one(number, chance.uniform(0, length)) for number in range(load.streams)))
    return firsts


def test_requests_per_second_of_one_core(router: Process, plain: Process, figure: Report) -> None:
    clients, each, rates = 32, 60, {}
    for name, process in (("router", router), ("plain aiohttp proxy", plain)):
        uvloop.run(plainly(process.port, clients, 5))
        before = process.cpu()
        wall = uvloop.run(plainly(process.port, clients, each))
        rates[name] = clients * each / (process.cpu() - before)
        _show(f"{name}: {rates[name]:.0f} requests/s of one core ({clients * each / wall:.0f}/s beside other work)")
    figure("router: requests of one core", rates["router"], "/s", "at least 2000")
    assert rates["router"] >= 2000


def test_chunks_per_second_of_one_core(router: Process, plain: Process, figure: Report) -> None:
    rates = {}
    for name, process in (("router", router), ("plain aiohttp proxy", plain)):
        before = process.cpu()
        wall = time.perf_counter()
        firsts = uvloop.run(streaming(process.port, FLOOD, 2))
        count, wall = len(firsts) * FLOOD.chunks, time.perf_counter() - wall
        rates[name] = count / (process.cpu() - before)
        _show(f"{name}: {rates[name]:.0f} streamed chunks/s of one core ({count / wall:.0f}/s beside other work)")
    figure("router: streamed chunks of one core", rates["router"], "/s", "at least 20000")
    assert rates["router"] >= 20_000
    assert rates["router"] > rates["plain aiohttp proxy"]


@contextmanager
def undisturbed(*others: Process) -> Iterator[bool]:
    """What is measured on one core and the load on the others, before anything else that wants them; False where that
    is not allowed.

    Else the time that a busy machine takes to let a process run is what is measured, several times a request.
    """
    cores = sorted(os.sched_getaffinity(0))
    pids = [process.pid for process in others]
    allowed = True
    if len(cores) > 1:
        for pid in pids:
            os.sched_setaffinity(pid, {cores[0]})
        os.sched_setaffinity(0, set(cores[1:]))
    try:
        for pid in (*pids, 0):
            os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        allowed = False
    try:
        yield allowed
    finally:
        if allowed:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.sched_setaffinity(0, set(cores))


async def _first_bytes() -> dict[str, list[float]]:
    """Directly, through a bare relay and through a router, in turns, so that all meet the same neighbours.

    Engine and clients share a loop, so that one more process is all that relay and router add.
    """
    server = await asyncio.get_running_loop().create_server(runpy.run_path(str(PARTS))["Engine"], "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    seen: dict[str, list[float]] = {"direct": [], "relay": [], "router": []}
    copying = running([sys.executable, str(PARTS), "relay", str(port)])
    with running(router_command(port), is_router=True) as router, copying as relay, undisturbed(router, relay) as alone:
        _show("real-time priority for all" if alone else "no priority over other processes")
        await streaming(router.port, STEADY, 1)
        for _ in range(3):
            seen["direct"] += await streaming(port, STEADY, 2)
            seen["relay"] += await streaming(relay.port, STEADY, 2)
            seen["router"] += await streaming(router.port, STEADY, 2)
    server.close()
    return seen


def test_what_is_added_to_the_first_byte(figure: Report) -> None:
    """A relay that only copies is what any process in between costs on this machine; the rest is the router's own."""
    seen = uvloop.run(_first_bytes())
    quantiles = {name: statistics.quantiles(values, n=100) for name, values in seen.items()}
    for name, values in quantiles.items():
        half, most, nearly_all = (values[at] * 1e3 for at in (49, 89, 98))
        _show(f"{name}: first byte p50 {half:.2f} ms, p90 {most:.2f} ms, p99 {nearly_all:.2f} ms")
    added = {name: quantiles[name][98] - quantiles["direct"][98] for name in ("relay", "router")}
    own = quantiles["router"][98] - quantiles["relay"][98]
    _show(
        f"added p99 at {STEADY.streams} concurrent streams: {added['router'] * 1e3:.2f} ms, of which a bare relay in "
        f"the same place adds {added['relay'] * 1e3:.2f} ms; the router's own: {own * 1e3:.2f} ms"
    )
    figure(f"router: added to the first byte at {STEADY.streams} streams, p99", added["router"] * 1e3, "ms")
    figure("router: of that its own, beside a bare relay", own * 1e3, "ms", "under 2")
    assert own < 2e-3
