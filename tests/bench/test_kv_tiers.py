"""What a tier saves: time to first token of a 2,000-token prefix that the device has lost, beside computing it."""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import EngineConfig
from energyopt.core.records import RequestRecord
from engine.front import EngineFront
from engine.kv.tiers import Tiers
from engine.models import load_model
from engine.offload import tiers_for
from engine.request import SamplingParams
from engine.runner import TorchRunner
from tests.bench.figures import Report

PREFIX = 2000
"""A multiple of the block."""
ROUNDS = 3
LEAST = {"host": 8.0, "disk": 4.0, "shared": 3.0}
"""How many times sooner the first token must come."""

pytestmark = pytest.mark.bench


class Engine:
    def __init__(self, tiers: list[dict[str, object]]) -> None:
        config = EngineConfig.model_validate(
            {"model": "smollm2-135m", "device": "cpu", "kv": {"memory_bytes": 1 << 28, "tiers": tiers}}
        )
        clock, loaded = MonotonicClock(), load_model(config)
        runner = TorchRunner(loaded, config, clock)
        tiers_made = tiers_for(config, loaded, runner, clock)
        assert tiers_made is not None
        self.tiers: Tiers = tiers_made
        self.records: list[RequestRecord] = []
        self.vocabulary = loaded.tokenizer.vocab_size
        self.front = EngineFront(
            config,
            runner,
            loaded.tokenizer,
            max_model_len=loaded.max_model_len,
            clock=clock,
            tiers=self.tiers,
            on_request=self.records.append,
        )

    def first_token(self, prompt: list[int]) -> tuple[float, str]:
        """Seconds to the first token, and where the prefix came from."""
        asyncio.run(self._ask(prompt))
        record = self.records[-1]
        assert record.ttft is not None
        (source,) = record.cached_by_tier or {"computed": 0}
        assert record.cached_tokens in (0, PREFIX)
        return record.ttft, source

    def forget(self, *tiers: str) -> None:
        for tier in tiers:
            asyncio.run(self.front.reset_prefix_cache(tier))
        self.settle()

    def settle(self) -> None:
        """Until nothing is copied, saved or reset any more, so that the next figure is of one thing."""
        quiet = 0
        while quiet < 5:  # the step loop offers blocks a moment after the last token
            quiet = 0 if self.tiers.busy else quiet + 1
            time.sleep(0.02)

    async def _ask(self, prompt: list[int]) -> None:
        params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
        async for _ in self.front.generate(prompt, params, request_id=f"r{len(self.records)}"):
            pass


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str | None]:
    """A Mooncake master's address; None where the library cannot be loaded."""
    if subprocess.run([sys.executable, "-c", "import mooncake.store"], check=False, capture_output=True).returncode:
        yield None
        return
    rpc, http, metrics = _ports(3)
    command = [str(Path(sys.executable).with_name("mooncake_master")), "--rpc_address=127.0.0.1", f"--rpc_port={rpc}"]
    command += ["--enable_http_metadata_server=true", "--http_metadata_server_host=127.0.0.1"]
    command += [f"--http_metadata_server_port={http}", f"--metrics_port={metrics}"]
    log = (tmp_path_factory.mktemp("pool") / "log").open("wb")
    with log, subprocess.Popen(command, stdout=log, stderr=log) as master:
        time.sleep(2)
        yield f"mooncake://127.0.0.1:{rpc}?metadata=http://127.0.0.1:{http}/metadata"
        master.kill()


def _show(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - a bench exists to print its figures


def _ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(made.getsockname()[1]) for made in sockets]
    for made in sockets:
        made.close()
    return ports


def test_first_token_through_each_tier(pool: str | None, tmp_path: Path, figure: Report) -> None:
    tiers: list[dict[str, object]] = [
        {"kind": "host", "bytes_per_host": 1 << 29},
        {"kind": "disk", "bytes_per_host": 1 << 30, "path": str(tmp_path)},
    ]
    if pool is not None:
        tiers.append({"kind": "shared", "bytes_per_host": 1 << 29, "path": pool})
    engine = Engine(tiers)
    times: dict[str, list[float]] = {}
    try:
        engine.first_token(list(range(100, 164)))
        for number in range(ROUNDS):
            # no two rounds share a block, and every prefix ends at the end of one
            prompt = [1000 + number] + [200 + (at * 7919) % 40000 for at in range(PREFIX)]
            lost: list[str] = ["device"]
            for _ in range(1 + len(tiers)):
                seconds, source = engine.first_token(prompt)
                times.setdefault(source, []).append(seconds)
                engine.settle()
                if len(lost) <= len(tiers):
                    engine.forget(*lost)
                    lost.append(["host", "disk", "shared"][len(lost) - 1])
    finally:
        engine.front.close()
    computed = statistics.median(times["computed"])
    _show(f"\n2,000-token prefix, SmolLM2-135M, {os.cpu_count()} cores: computed {computed:.3f} s to the first token")
    for tier, least in LEAST.items():
        if tier in times:
            median = statistics.median(times[tier])
            sooner = computed / median
            figure(f"KV tier {tier}: first token of a 2,000-token prefix", sooner, "x sooner", f"at least {least:g}")
            _show(f"  through {tier}: {median:.3f} s, {computed / median:.1f} times sooner (at least {least:g})")
    for tier in times.keys() & LEAST.keys():
        assert computed / statistics.median(times[tier]) >= LEAST[tier], tier
    assert len(times) == 1 + len(tiers)
