"""How fast the simulator is: a published trace on a large fleet. One core; prints what it simulated."""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path

import pytest

from energyopt.core.config import EngineConfig, KvConfig, ParallelLayout
from tests.bench.figures import Report
from tuner.simulator.constants import load_constants
from tuner.simulator.fleet import Fleet
from tuner.simulator.hardware import load_gpu
from tuner.simulator.machine import Machine
from tuner.simulator.models import load_model_spec
from tuner.simulator.routing import PrefixRouter
from tuner.simulator.traffic import mooncake_requests

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]
TRACE = Path(__file__).parents[3] / "shared" / "data" / "traces" / "mooncake" / "conversation_trace.jsonl"
REQUESTS, ENGINES, ROUNDS, LIMIT = 100_000, 64, 9, 60.0
"""The trace has 12,031 rows: nine copies of it run at once, each with prefixes of its own, cut at 100,000 requests."""
BLOCK = 512
"""The trace's own unit of prefixes, taken as the engine's block."""


@pytest.mark.skipif(not TRACE.is_file(), reason=f"the published trace is not at {TRACE}")
def test_a_hundred_thousand_requests_on_sixty_four_devices(figure: Report) -> None:
    gpu, spec = load_gpu("h200"), load_model_spec("llama-3.1-8b")
    machine = Machine(spec, gpu, ParallelLayout(), load_constants(gpu, moe=False))
    config = EngineConfig(
        model=spec.name, max_num_seqs=256, max_num_batched_tokens=8192, kv=KvConfig(block_tokens=BLOCK)
    )
    fleet = Fleet(machine, config, ENGINES, router=PrefixRouter(BLOCK))
    began = time.perf_counter(), time.process_time()
    rows = mooncake_requests(TRACE, repeat=ROUNDS, together=True, block_tokens=BLOCK)
    result = fleet.run(islice(rows, REQUESTS))
    wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
    steps = sum(replica.scheduler.counters.steps for replica in fleet.replicas)
    print(  # noqa: T201  # the figures are what a benchmark is for
        f"\n{result.requests:,} requests, {result.output_tokens:,} output tokens, {steps:,} steps, {ENGINES} engines: "
        f"{wall:.1f} s wall, {cpu:.1f} s of one core; simulated {result.window:,.0f} s, "
        f"hit rate {result.hit_rate:.1%}, {result.tokens_per_joule:.3f} tokens/J, "
        f"ttft p90 {result.latencies['ttft'].p90:.3f} s, itl p99 {1e3 * result.latencies['itl'].p99:.1f} ms"
    )
    assert result.requests == REQUESTS
    figure("simulator: 100,000 requests on 64 GPUs, one core", cpu, "s", f"under {LIMIT:g}")
    assert cpu < LIMIT
