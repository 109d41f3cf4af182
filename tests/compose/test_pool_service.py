"""Engines of pools are killed, starved and moved while clients wait: none of them notices more than a delay."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.serve import bind
from energyopt.compose.pools import PoolService, PoolsRequest
from energyopt.compose.service import ServeRequest
from energyopt.core.config import EngineConfig
from energyopt.core.errors import LaunchError

WORKER = (sys.executable, "-P", str(Path(__file__).with_name("fake_pool_worker.py")))
SERVE = ServeRequest(engine=EngineConfig(model="fake", device="cpu"), api_key=None)


class Running:
    """A service over engines without a model, in a thread of this process."""

    def __init__(self, prefill: int, decode: int, serve: ServeRequest = SERVE) -> None:
        self.said: list[str] = []
        self.service = PoolService(
            PoolsRequest(serve=serve, prefill=prefill, decode=decode), self.said.append, command=WORKER
        )
        listener = bind("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.thread = threading.Thread(target=self.service.run, args=(listener,))
        self.thread.start()

    def pid(self, name: str) -> int:
        (found,) = (process.pid for process in self.service.processes if process.name == name)
        assert found is not None
        return found

    def events(self) -> dict[str, int]:
        return dict(self.service.front.counts)

    def close(self) -> None:
        self.service.stop()
        self.thread.join(30)
        assert not self.thread.is_alive()


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    started = Running(prefill=1, decode=2)
    yield started
    started.close()


@pytest.fixture
async def client(running: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=running.url, timeout=60.0) as made:
        await until(made, lambda worker: worker["up"])
        yield made


async def until(client: httpx.AsyncClient, holds: Callable[[dict[str, Any]], bool]) -> None:
    """Wait until something holds for every engine."""
    deadline = time.monotonic() + 60
    while True:
        workers = (await client.get("/admin/pools")).json()["workers"]
        if all(map(holds, workers)):
            return
        assert time.monotonic() < deadline, workers
        await asyncio.sleep(0.05)


async def ask(client: httpx.AsyncClient, number: int, tokens: int = 100, *, stream: bool = True) -> str:
    """The text of a request; a stream must be one call and end well."""
    body = {"prompt": f"request {number} " * 20, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    if not stream:
        reply = await client.post("/v1/completions", json=body)
        assert reply.status_code == 200, reply.text
        return str(reply.json()["choices"][0]["text"])
    text, ids, lines = "", set(), []
    async with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
        lines = [line async for line in answer.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]", lines[-1]
    for line in lines[:-1]:
        event = json.loads(line.removeprefix("data: "))
        ids.add((event["id"], event["created"]))
        text += event["choices"][0]["text"]
    assert len(ids) == 1
    return text


async def test_killed_engines_cost_time_and_nothing_else(client: httpx.AsyncClient, running: Running) -> None:
    """A decode engine, a prefill engine, then the last one that is up, under load all the while."""
    expected = [await ask(client, number, stream=False) for number in range(6)]
    first = {name: running.pid(name) for name in ("decode-0", "prefill-0", "decode-1")}
    tasks: list[tuple[int, asyncio.Task[str]]] = []
    for pid in first.values():
        tasks += [(n, asyncio.create_task(ask(client, n, stream=n % 3 != 2))) for n in range(6)]
        await asyncio.sleep(0.4)
        os.kill(pid, signal.SIGKILL)
    for number, task in tasks:
        assert await task == expected[number]
    await until(client, lambda worker: bool(worker["up"]))
    assert all(running.pid(name) != pid for name, pid in first.items())
    assert running.events()["decode_retries"] >= 2
    assert await ask(client, 0) == expected[0]


async def test_an_engine_that_stands_still_is_replaced(client: httpx.AsyncClient, running: Running) -> None:
    """What waits for it is answered by others, as after a death."""
    expected = [await ask(client, number, 40) for number in range(4)]
    pid = running.pid("decode-0")
    os.kill(pid, signal.SIGSTOP)
    tasks = [asyncio.create_task(ask(client, number, 40, stream=number % 2 == 0)) for number in range(4)]
    (process,) = (one for one in running.service.processes if one.name == "decode-0")
    await asyncio.sleep(0.1)
    process.replace("has said nothing")
    assert [await task for task in tasks] == expected
    await until(client, lambda worker: bool(worker["up"]))
    assert running.pid("decode-0") != pid


@pytest.mark.parametrize("status", [None, 503])
async def test_the_watch_replaces_the_process_of_an_engine_that_is_silent_or_dead(status: int | None) -> None:
    service = PoolService(PoolsRequest(serve=SERVE, prefill=1, decode=2), print, command=WORKER, silence=0.0)
    replaced: list[tuple[str, str]] = []
    for process in service.processes:
        service.pools.up(process.name, f"http://{process.name}")
        process.replace = partial(_noted, replaced, process.name)  # type: ignore[method-assign]

    async def status_of(url: str, path: str, patience: float) -> int | None:
        return status if url == "http://decode-1" else 200

    service.front.status_of = status_of  # type: ignore[method-assign]
    await service.watch.once()
    assert replaced == [("decode-1", "says that it is dead" if status else "has said nothing for 0 s")]
    assert [worker.name for worker in service.pools.workers if worker.url is None] == ["decode-1"]


def _noted(replaced: list[tuple[str, str]], name: str, why: str) -> None:
    replaced.append((name, why))


async def test_roles_change_under_load_without_a_lost_request(client: httpx.AsyncClient, running: Running) -> None:
    """1P2D to 2P1D and back while twelve clients wait."""
    expected = [await ask(client, number, 60) for number in range(4)]
    tasks = [asyncio.create_task(ask(client, number % 4, 60)) for number in range(6)]
    await asyncio.sleep(0.2)
    changed = (await client.post("/admin/pools", json={"prefill": 2, "decode": 1})).json()
    assert (changed["prefill"], changed["decode"], len(changed["changed"])) == (2, 1, 1)
    tasks += [asyncio.create_task(ask(client, number % 4, 60)) for number in range(6, 12)]
    await asyncio.sleep(0.2)
    assert (await client.post("/admin/pools", json={"decode": 2})).json()["prefill"] == 1
    assert [await task for task in tasks] == [expected[number % 4] for number in range(12)]
    assert running.events().get("differs", 0) == 0
    for body in ("{", "[]", '{"prefill": 0}', '{"prefill": 3}', '{"prefill": 1, "decode": 1}', '{"prefill": "2"}'):
        assert (await client.post("/admin/pools", content=body)).status_code == 400, body


async def test_the_metrics_of_all_engines_are_one_page(client: httpx.AsyncClient, running: Running) -> None:
    page = (await client.get("/metrics")).text
    assert re.search(r'energyopt_pool_worker_up\{role="decode",worker="decode-1"\} 1.0', page)
    assert "energyopt_pool_events_total" in page
    gone = await client.get("/nothing")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "unknown_url")


async def test_a_client_that_leaves_frees_its_engine(client: httpx.AsyncClient) -> None:
    with pytest.raises(httpx.ReadTimeout):
        await client.post("/v1/completions", json={"prompt": "x" * 50, "max_tokens": 3000}, timeout=0.4)
    await until(client, lambda worker: not any(worker["legs"].values()))


def test_an_engine_that_cannot_start_is_told_with_its_words() -> None:
    broken = (sys.executable, "-P", "-c", "import sys; sys.exit('no such model')")
    service = PoolService(PoolsRequest(serve=SERVE), print, command=broken)
    with bind("127.0.0.1", 0) as listener, pytest.raises(LaunchError, match=r"did not start .*no such model"):
        service.run(listener)


async def test_the_operators_key_guards_the_pools() -> None:
    keyed = PoolService(PoolsRequest(serve=SERVE.model_copy(update={"api_key": "sesame"})), print, command=WORKER)
    transport = httpx.ASGITransport(app=keyed.front.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://front") as own:
        assert (await own.get("/admin/pools")).status_code == 401
        assert (await own.get("/admin/pools", headers={"authorization": "Bearer sesame"})).status_code == 200
        assert (await own.get("/health")).status_code == 503
    tenants = SERVE.model_copy(update={"tenants": {"k": "t"}})
    owned = PoolService(PoolsRequest(serve=tenants), print, command=WORKER)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=owned.front.app), base_url="http://front") as own:
        assert (await own.get("/admin/pools", headers={"authorization": "Bearer k"})).status_code == 403
