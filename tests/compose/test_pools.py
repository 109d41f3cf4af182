"""``serve --prefill 1 --decode 1`` as its users see it: one engine's text, whatever is killed meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig
from energyopt.core.records import FinishReason
from engine.front import EngineFront
from engine.models import load_model
from engine.request import SamplingParams
from engine.runner import TorchRunner

pytestmark = pytest.mark.long  # test_pool_service has the same processes around a smaller engine
START = 120.0
OPTIONS = ("--dtype", "float32", "--max-num-batched-tokens", "256", "--kv-cache-memory-bytes", "4MiB", "--threads", "2")


class Pools:
    """The command in a process of its own."""

    def __init__(self, model: Path) -> None:
        program = "from energyopt.cli.main import main; main()"
        command = [sys.executable, "-P", "-c", program, "serve", str(model), "--port", "0", *OPTIONS]
        self.process = subprocess.Popen(
            [*command, "--prefill", "1", "--decode", "1"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        self.url = self._address()

    def _address(self) -> str:
        said: list[str] = []
        assert self.process.stderr is not None
        for line in self.process.stderr:
            said.append(line)
            if match := re.search(r"serving on (http://\S+)/v1", line):
                return match.group(1)
        raise AssertionError("".join(said))

    def engines(self) -> list[int]:
        """Process ids of the engines, in the order of their start."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sorted({*map(int, children), *(int(c) for t in tasks for c in (t / "children").read_text().split())})


@pytest.fixture(scope="module")
def pools(tiny_model: Path) -> Iterator[Pools]:
    """One started pair for all cases."""
    started = Pools(tiny_model)
    yield started
    started.process.terminate()
    try:
        started.process.wait(30)
    finally:
        started.process.kill()
        assert started.process.stderr is not None
        started.process.stderr.close()


@pytest.fixture(scope="module")
def alone(tiny_model: Path) -> Iterator[Any]:
    """One engine that does everything, in this process: what the text must be."""
    config = EngineConfig.model_validate(
        {"model": str(tiny_model), "device": "cpu", "dtype": "float32", "threads": 1, "kv": {"memory_bytes": 1 << 22}}
    )
    loaded = load_model(config)
    front = EngineFront(
        config,
        TorchRunner(loaded, config, MonotonicClock()),
        loaded.tokenizer,
        max_model_len=loaded.max_model_len,
        clock=MonotonicClock(),
    )

    async def ask(prompt: str, **params: Any) -> str:
        asked = SamplingParams(**params)
        outputs = front.generate(loaded.tokenizer.encode(prompt), asked, request_id=os.urandom(8).hex())
        return "".join([output.text async for output in outputs])

    yield ask
    front.close()


@pytest.fixture
async def client(pools: Pools) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=pools.url, timeout=120.0) as made:
        yield made


async def whole(client: httpx.AsyncClient, prompt: str, **fields: Any) -> dict[str, Any]:
    reply = await client.post("/v1/completions", json={"prompt": prompt, **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()  # type: ignore[no-any-return]


async def streamed(client: httpx.AsyncClient, prompt: str, **fields: Any) -> tuple[str, str, set[str]]:
    """Text, finish reason and the ids of the events."""
    text, reason, ids = "", "", set()
    async with client.stream("POST", "/v1/completions", json={"prompt": prompt, "stream": True, **fields}) as reply:
        lines = [line async for line in reply.aiter_lines() if line.startswith(("data:", "event:"))]
    assert lines[-1] == "data: [DONE]", lines[-2:]
    for line in lines[:-1]:
        event = json.loads(line.removeprefix("data: "))
        ids.add(event["id"])
        text += event["choices"][0]["text"]
        reason = event["choices"][0]["finish_reason"] or reason
    return text, reason, ids


async def computed(client: httpx.AsyncClient, role: str) -> dict[str, float]:
    """Prompt tokens of a pool by where their KV came from."""
    page = (await client.get("/metrics")).text
    found = re.findall(r"^energyopt_prompt_tokens_by_source_total\{(.*)\} (\S+)$", page, re.MULTILINE)
    mine = [(re.search(r'source="(\w+)"', labels), value) for labels, value in found if f'role="{role}"' in labels]
    return {match.group(1): float(value) for match, value in mine if match is not None}


async def test_the_text_is_one_engines(client: httpx.AsyncClient, alone: Any) -> None:
    """Greedy and seeded, below and above a block and a chunk, first and with a cached prefix; one token is computed."""
    prompts = ["x", "short", "p" * 16, "q" * 17, "a long one " * 60, "a long one " * 60 + "that goes on", "short"]
    before = await computed(client, "decode")
    for prompt in prompts:
        for how in ({"temperature": 0.0}, {"temperature": 1.1, "seed": 7, "top_p": 0.9}):
            reply = await whole(client, prompt, max_tokens=12, **how)
            assert reply["choices"][0]["text"] == await alone(prompt, max_tokens=12, **how), (prompt[:20], how)
            assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == len(prompt) - 1
    after = await computed(client, "decode")
    assert after["local_compute"] - before.get("local_compute", 0.0) == 2 * len(prompts)
    text, reason, _ = await streamed(client, prompts[4], max_tokens=12, temperature=0.0)
    assert (text, reason) == (await alone(prompts[4], max_tokens=12, temperature=0.0), FinishReason.LENGTH.value)


async def test_what_cannot_be_handed_over_is_served_all_the_same(client: httpx.AsyncClient, alone: Any) -> None:
    reply = await whole(client, "two of them", n=2, max_tokens=6, temperature=0)
    assert [choice["text"] for choice in reply["choices"]] == [
        await alone("two of them", max_tokens=6, temperature=0)
    ] * 2
    chat = await client.post(
        "/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    )
    assert chat.json()["usage"]["completion_tokens"] <= 4
    for body, word in (("{", "not valid JSON"), ('{"prompt": "x", "temperatur": 1}', "temperature"), ("{}", "prompt")):
        refused = await client.post("/v1/completions", content=body)
        assert refused.status_code == 400
        assert word in refused.json()["error"]["message"]
    long = await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 4000})
    assert "4000" in long.json()["error"]["message"]
    assert len((await client.get("/v1/models")).json()["data"]) >= 1
    assert (await client.get("/health")).json()["prefill"] == 1
    assert (await client.post("/admin/pools", json={"prefill": 2})).status_code == 400
    assert set((await client.post("/reset_prefix_cache")).json()) == {"prefill-0", "decode-0"}


async def test_sigterm_ends_everything_cleanly(pools: Pools) -> None:
    """The last case: a running request is finished, then nobody is left."""
    engines = pools.engines()
    async with httpx.AsyncClient(base_url=pools.url, timeout=60.0) as own:
        task = asyncio.create_task(streamed(own, "the last one", max_tokens=200, temperature=0, ignore_eos=True))
        await asyncio.sleep(0.2)
        pools.process.send_signal(signal.SIGTERM)
        assert (await task)[1] == "length"
    assert await asyncio.to_thread(pools.process.wait, 30) == 0
    for engine in engines:
        with pytest.raises(ProcessLookupError):
            os.kill(engine, 0)
