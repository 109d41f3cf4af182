"""What the service adds to the engine: time to first token on an idle server, and throughput at 16 streams.

The client is a process of its own. Every round measures the bare engine and the service one after the other.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import count

import pytest

from api.app import create_app
from api.fake import FakeMetrics
from api.serve import Server, bind
from api.services import Services
from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig, KvConfig
from energyopt.core.records import StepRecord
from energyopt.core.units import Bytes, Seconds
from engine.front import EngineFront
from engine.kv.configured import cache_for
from engine.models import LoadedModel, load_model
from engine.request import Request, SamplingParams
from engine.runner import TorchRunner
from engine.scheduler import Scheduler
from engine.step import StepLoop

pytestmark = pytest.mark.bench
ROUNDS, STREAMS, TOKENS, PROMPT = 3, 16, 48, 512
CONFIG = EngineConfig(
    model="smollm2-135m", threads=1, max_num_seqs=STREAMS, kv=KvConfig(prefix_caching=False, memory_bytes=Bytes(2**29))
)
CLIENT = """
import asyncio, json, sys, time
import aiohttp
async def one(session, url, body):
    start, first = time.perf_counter(), None
    async with session.post(url + "/v1/completions", json=body) as reply:
        async for line in reply.content:
            if line.startswith(b"data: {") and first is None:
                first = time.perf_counter() - start
    return first
async def main(url, streams, body):
    async with aiohttp.ClientSession() as session:
        await one(session, url, {**body, "max_tokens": 1})
        start = time.perf_counter()
        firsts = await asyncio.gather(*(one(session, url, body) for _ in range(streams)))
        print(json.dumps([firsts[0], time.perf_counter() - start]))
asyncio.run(main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])))
"""
_names = count()


def _show(figure: str) -> None:
    print(f"\n{figure}")  # noqa: T201 - a bench exists to print its figures


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(CONFIG)


@pytest.fixture(scope="module")
def url(loaded: LoadedModel) -> Iterator[str]:
    front = EngineFront(
        CONFIG,
        TorchRunner(loaded, CONFIG, MonotonicClock()),
        loaded.tokenizer,
        max_model_len=loaded.max_model_len,
        clock=MonotonicClock(),
    )
    assert loaded.chat is not None
    services = Services(front, loaded.tokenizer, loaded.chat, FakeMetrics(), (loaded.name,), "0")
    listener, ready = bind("127.0.0.1", 0), threading.Event()
    server = Server(create_app(services), grace=Seconds(5), abort=front.close, on_ready=ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    assert ready.wait(10)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.stop()
    thread.join(20)
    front.close()


def served(url: str, streams: int, prompt: int, tokens: int) -> tuple[float, float]:
    """Seconds to the first token of the first stream, and seconds of all."""
    body = {"prompt": list(range(100, 100 + prompt)), "max_tokens": tokens, "ignore_eos": True, "stream": True}
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, url, str(streams), json.dumps({**body, "temperature": 0})],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    first, whole = json.loads(done.stdout)
    return first, whole


def bare(runner: TorchRunner, loaded: LoadedModel, streams: int, prompt: int, tokens: int) -> float:
    """Seconds in the runner for the same work: scheduling and what stands around it do not count."""
    spent: list[float] = []

    def keep(_: object, record: StepRecord) -> None:
        spent.append(record.end - record.start)

    scheduler = Scheduler(CONFIG, cache_for(CONFIG, runner.cache), max_model_len=loaded.max_model_len)
    loop = StepLoop(scheduler, runner, keep)
    params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    for _ in range(streams):
        scheduler.add(Request(str(next(_names)), tuple(range(100, 100 + prompt)), params, Seconds(0.0)))
    while loop.step():
        pass
    return sum(spent)


def test_the_first_token_of_an_idle_server(loaded: LoadedModel, url: str) -> None:
    runner = TorchRunner(loaded, CONFIG, MonotonicClock())
    bare(runner, loaded, 1, PROMPT, 1)
    pairs = [(served(url, 1, PROMPT, 1)[0], bare(runner, loaded, 1, PROMPT, 1)) for _ in range(2 * ROUNDS)]
    ratio = statistics.median(ours / alone for ours, alone in pairs)
    _show(f"first token of {PROMPT} prompt tokens: {ratio:.2f}x the bare prefill ({pairs[-1][1] * 1e3:.0f} ms)")
    assert ratio < 1.2


def test_throughput_at_sixteen_streams(loaded: LoadedModel, url: str) -> None:
    runner = TorchRunner(loaded, CONFIG, MonotonicClock())
    bare(runner, loaded, STREAMS, 16, 4)
    pairs = [(served(url, STREAMS, 16, TOKENS)[1], bare(runner, loaded, STREAMS, 16, TOKENS)) for _ in range(ROUNDS)]
    share = 1 - statistics.median(alone / ours for ours, alone in pairs)
    speed = STREAMS * TOKENS / pairs[-1][0]
    _show(f"{STREAMS} streams: {speed:.0f} tokens/s over HTTP; API and scheduling take {100 * share:.0f}% of the time")
    assert share < 0.15
