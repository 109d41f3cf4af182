"""What the service adds to the engine: time to first token on an idle server, and processor time at 16 streams.

The client is a process of its own. Shares are of processor time, of the engine's thread and of all threads: other
programs on the machine change them little. Start and memory are those of ``energyopt serve`` as a user starts it.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from api.app import create_app
from api.fake import FakeMetrics
from api.serve import Server, bind
from api.services import Services
from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig, KvConfig
from energyopt.core.units import Bytes, Seconds
from engine.batch import Batch, StepResult
from engine.front import EngineFront
from engine.kv.configured import cache_for
from engine.models import resolve_model
from engine.request import Request, SamplingParams
from engine.runners import AnyRunner, open_runner
from engine.scheduler import Scheduler
from engine.step import StepLoop
from tests.bench.figures import Report

pytestmark = pytest.mark.bench
ROUNDS, STREAMS, TOKENS, PROMPT = 3, 16, 48, 512
POOL = 2**28
CONFIG = EngineConfig(
    model="smollm2-135m", threads=1, max_num_seqs=STREAMS, kv=KvConfig(prefix_caching=False, memory_bytes=Bytes(POOL))
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


class Watched:
    """The runner, and the processor time that its calls took. Satisfies ``Runner``."""

    def __init__(self, runner: AnyRunner) -> None:
        self.inner = runner
        self.cache, self.devices, self.close = runner.cache, runner.devices, runner.close
        self.spent = 0.0

    def run(self, batch: Batch) -> StepResult:
        start = time.thread_time()
        result = self.inner.run(batch)
        self.spent += time.thread_time() - start
        return result


@dataclass(frozen=True)
class Bench:
    """A service in this process, and its runner."""

    url: str
    runner: Watched
    thread: threading.Thread
    max_model_len: int

    def seconds(self) -> tuple[float, float, float]:
        """Processor time of the whole process, of the service's event loop, and of the runner."""
        assert self.thread.ident is not None
        loop = time.clock_gettime(time.pthread_getcpuclockid(self.thread.ident))
        return time.process_time(), loop, self.runner.spent


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    loaded, runner = open_runner(CONFIG, MonotonicClock())
    watched = Watched(runner)
    front = EngineFront(CONFIG, watched, loaded.tokenizer, max_model_len=loaded.max_model_len, clock=MonotonicClock())
    assert loaded.chat is not None
    services = Services(front, loaded.tokenizer, loaded.chat, FakeMetrics(), (loaded.name,), "0")
    listener, ready = bind("127.0.0.1", 0), threading.Event()
    server = Server(create_app(services), grace=Seconds(5), abort=front.close, on_ready=ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    assert ready.wait(10)
    yield Bench(f"http://127.0.0.1:{listener.getsockname()[1]}", watched, thread, loaded.max_model_len)
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


def bare(bench: Bench, prompt: int) -> float:
    """Seconds of the prefill alone, in the runner."""
    spent: list[float] = []
    scheduler = Scheduler(CONFIG, cache_for(CONFIG, bench.runner.cache), max_model_len=bench.max_model_len)
    loop = StepLoop(scheduler, bench.runner, lambda _, record: spent.append(record.end - record.start))
    params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
    scheduler.add(Request(str(next(_names)), tuple(range(100, 100 + prompt)), params, Seconds(0.0)))
    while loop.step():
        pass
    return sum(spent)


def test_the_first_token_of_an_idle_server(bench: Bench, figure: Report) -> None:
    bare(bench, PROMPT)
    pairs = [(served(bench.url, 1, PROMPT, 1)[0], bare(bench, PROMPT)) for _ in range(2 * ROUNDS)]
    ratio = statistics.median(ours / alone for ours, alone in pairs)
    best = min(ours for ours, _ in pairs) / min(alone for _, alone in pairs)
    _show(
        f"first token of {PROMPT} prompt tokens: {ratio:.2f}x the bare prefill (median), {best:.2f}x (best of each: "
        f"{min(alone for _, alone in pairs) * 1e3:.0f} ms); load {os.getloadavg()[0]:.1f}"
    )
    figure("serving: first token beside the bare prefill", min(ratio, best), "x", "under 1.2")
    assert min(ratio, best) < 1.2


def test_processor_time_at_sixteen_streams(bench: Bench, figure: Report) -> None:
    shares: list[float] = []
    for _ in range(ROUNDS):
        before = bench.seconds()
        served(bench.url, STREAMS, 16, TOKENS)
        whole, loop, runner = (now - then for now, then in zip(bench.seconds(), before, strict=True))
        shares.append(1 - runner / whole)
        each = 1e6 / (STREAMS * TOKENS)
        _show(
            f"{STREAMS} streams, per token: event loop {loop * each:.0f} us, engine's thread beside the runner "
            f"{(whole - loop - runner) * each:.0f} us, runner {runner * each:.0f} us; API and scheduling take "
            f"{100 * shares[-1]:.1f}% of the processor time; load {os.getloadavg()[0]:.1f}"
        )
    share = statistics.median(shares)
    figure(f"serving: API and scheduling at {STREAMS} streams, share of processor time", 100 * share, "%", "under 15")
    assert share < 0.15


def test_start_to_first_token_and_memory(figure: Report) -> None:
    """Of a process as a user starts it, once files are in the page cache and native kernels are built."""
    ready, first, processor, resident, weights = min((_started() for _ in range(2)), key=lambda start: start[1])
    _show(
        f"start to first token {first:.1f} s (listening after {ready:.1f} s; {processor:.1f} s of processor time); "
        f"resident {resident / 1e6:.0f} MB = weights {weights / 1e6:.0f} MB + pool {POOL / 1e6:.0f} MB (as it fills) "
        f"+ the rest; load {os.getloadavg()[0]:.1f}"
    )
    figure("serving: start to first token", first, "s", "under 5")
    figure("serving: memory beside weights and pool", (resident - weights - POOL) / 1e6, "MB", "under 400")
    assert resident < weights + POOL + 400e6
    if os.getloadavg()[0] > len(os.sched_getaffinity(0)):
        pytest.skip("other programs use this machine: what a start takes on a quiet one cannot be judged")
    assert first < 5


def _started() -> tuple[float, float, float, int, int]:
    """Seconds until it listens and until a token came, its processor time then, its memory, and the weights' size."""
    program = "from energyopt.cli.main import main; main()"
    options = ["--port", "0", "--kv-cache-memory-bytes", str(POOL), "--meter", "none"]
    start = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-P", "-c", program, "serve", CONFIG.model, *options], stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stderr is not None
            url = next(found[1] for line in child.stderr if (found := re.search(r"serving on (http://\S+)/v1", line)))
            ready = time.monotonic() - start
            body = json.dumps({"prompt": "Once upon a time", "max_tokens": 1}).encode()
            request = urllib.request.Request(f"{url}/v1/completions", body)
            with urllib.request.urlopen(request, timeout=60) as reply:
                assert reply.status == 200
            first = time.monotonic() - start
            fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
            processor = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            status = Path(f"/proc/{child.pid}/status").read_text()
            resident = int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024  # type: ignore[index]
        finally:
            child.terminate()
            child.wait(60)
    return ready, first, processor, resident, resolve_model(CONFIG.model).stat().st_size
