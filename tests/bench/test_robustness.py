"""Whatever clients do, nothing hangs, leaks or dies: hundreds of requests of every kind at once, many of them bad."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.app import create_app
from api.fake import FakeChat, FakeMetrics
from api.serve import Server, bind
from api.services import Services
from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig, KvConfig, SpeculativeConfig
from energyopt.core.units import Bytes, Seconds
from engine.batch import CacheShape
from engine.fake import FakeRunner, FakeTokenizer
from engine.front import EngineFront
from engine.parsers.formats import Formats
from tests.bench.figures import Report

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
BAD_SCHEMAS: list[Any] = [
    {"type": "foo"},
    {"$ref": "#"},
    {"$ref": "http://example.com/schema"},
    {"anyOf": [False]},
    {"enum": [f"value {number}" for number in range(40_000)]},
]
Case = tuple[str, dict[str, Any], set[int]]


def case(rng: random.Random) -> Case:
    """Path, body and the statuses that are right for it (503 always is: the queue is short)."""
    say = [{"role": "user", "content": "Hello " * rng.randint(1, 12)}]
    seed = {"seed": rng.randrange(1000), "max_tokens": rng.randint(1, 90), "priority": rng.randint(-2, 2)}
    good: list[Case] = [
        (CHAT, {"messages": say, **seed}, {200}),
        (CHAT, {"messages": say, "stop": ["a", "xy", "\n"], "n": rng.randint(1, 3), **seed}, {200}),
        (CHAT, {"messages": say, "logprobs": True, "top_logprobs": 2, "min_tokens": 1, **seed}, {200}),
        (CHAT, {"messages": say, **seed, "timeout": rng.choice((0.001, 0.02, 0.2))}, {200, 504}),
        (CHAT, {"messages": say, "guided_json": SCHEMA, **seed}, {200}),
        (CHAT, {"messages": say, "guided_regex": "[a-c]{3,9}", "timeout": 0.05, **seed}, {200, 504}),
        (CHAT, {"messages": say, "tools": TOOLS, "tool_choice": "required", **seed}, {200}),
        (PLAIN, {"prompt": [[97] * rng.randint(1, 200), [98]], **seed}, {200}),
        (PLAIN, {"prompt": "x", "echo": True, "logit_bias": {"97": 5}, **seed}, {200}),
        ("/tokenize", {"prompt": "x" * rng.randint(0, 300)}, {200}),
    ]
    bad: list[Case] = [
        (PLAIN, {"prompt": "x" * 100_000, **seed}, {400}),
        (PLAIN, {"prompt": [1] * 5000, **seed}, {400}),
        (PLAIN, {"prompt": "", **seed}, {400}),
        (PLAIN, {"prompt": [999], **seed}, {400}),
        (CHAT, {"messages": say, "guided_json": rng.choice(BAD_SCHEMAS), **seed}, {400}),
        (CHAT, {"messages": say, "guided_regex": "(a", **seed}, {400}),
        (CHAT, {"messages": say, "model": "nobody"}, {404}),
        (CHAT, {"messages": say, "stop": [""]}, {400}),
        (CHAT, {"messages": say, "nonsense": 1}, {400}),
        (CHAT, {}, {400}),
    ]
    return rng.choice(good if rng.random() < 0.7 else bad)


@pytest.fixture
def engine() -> Iterator[EngineFront]:
    """Few blocks, so that requests are preempted; guesses, so that drafts are dropped; random logits."""
    config = EngineConfig(
        model="fake",
        max_num_seqs=12,
        max_num_batched_tokens=96,
        max_num_queued_reqs=48,
        kv=KvConfig(block_tokens=4),
        speculative_config=SpeculativeConfig(adaptive=False, prompt_lookup_min=1),
    )
    runner = FakeRunner(CacheShape(110, 4, Bytes(1)), random_vocab=FakeTokenizer().vocab_size)
    made = EngineFront(config, runner, FakeTokenizer(), max_model_len=400, clock=MonotonicClock())
    yield made
    made.close()


@pytest.fixture
def url(engine: EngineFront) -> Iterator[str]:
    formats = Formats("hermes", "think")
    services = Services(engine, FakeTokenizer(), FakeChat(), FakeMetrics(), ("m",), "0", formats=formats)
    listener, ready = bind("127.0.0.1", 0), threading.Event()
    server = Server(create_app(services), grace=Seconds(5), abort=engine.close, on_ready=ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    assert ready.wait(10)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.stop()
    thread.join(20)


async def one(http: httpx.AsyncClient, rng: random.Random) -> str:
    """One client; a third of them stream, and a third of those leave in the middle. What came of it."""
    path, body, right = case(rng)
    if path == "/tokenize" or rng.random() < 0.66:
        reply = await http.post(path, json=body)
        assert reply.status_code in right | {503}, (body, reply.text)
        return str(reply.status_code)
    leaves = rng.randint(0, 6) if rng.random() < 0.33 else None
    async with http.stream("POST", path, json={**body, "stream": True}) as stream:
        assert stream.status_code in right | {503}, body
        last, seen = "", 0
        async for line in stream.aiter_lines():
            seen += bool(line)
            if leaves is not None and seen > leaves:
                return "left"
            last = line or last
    assert stream.status_code != 200 or last == "data: [DONE]", last
    return f"streamed {stream.status_code}"


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * 4096


@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.bench)])
async def test_nothing_hangs_leaks_or_dies(engine: EngineFront, url: str, count: int, figure: Report) -> None:
    rng, outcomes, marks = random.Random(7), Counter[str](), list[int]()
    waiting = asyncio.Queue[int]()
    for number in range(count):
        waiting.put_nowait(number)

    async def client() -> None:
        while not waiting.empty():
            number = waiting.get_nowait()
            outcomes[await asyncio.wait_for(one(http, random.Random(rng.randrange(2**32))), 120)] += 1
            if number in (count // 2, count - 1):
                marks.append(resident())

    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, limits=limits) as http:
        await asyncio.gather(*(client() for _ in range(32)))
        for _ in range(1000):
            stats = engine.stats()
            if not (stats.running or stats.waiting):
                break
            await asyncio.sleep(0.01)
        assert (await http.get("/health")).status_code == 200
        assert (await http.post(PLAIN, json={"prompt": "still here", "max_tokens": 3})).status_code == 200
    print(f"\n{count} requests: {dict(sorted(outcomes.items()))}, {stats.preemptions} preemptions")  # noqa: T201
    print(f"memory at half and at the end: {[mark // 2**20 for mark in marks]} MiB")  # noqa: T201
    grown = (marks[-1] - marks[0]) / 2**20
    figure(f"API: {count} requests of all kinds, memory from half to end", grown, "MiB", "under 48")
    assert sum(outcomes.values()) == count
    assert {"200", "400", "404", "504", "left", "streamed 200"} <= outcomes.keys()
    assert stats.preemptions > 0
    assert stats.blocks_used == 0
    engine.close()
    engine._coordinator.check_integrity([])
    assert grown < 48
