"""Prefill and decode pools: hand-over under the engine's own scheduler, and agreement with the analytic path."""

from __future__ import annotations

import math

import pytest

from energyopt.core.config import EngineConfig, KvConfig, ParallelLayout
from energyopt.core.records import FinishReason
from energyopt.core.slo import Slo
from tuner.simulator.constants import load_constants
from tuner.simulator.hardware import load_gpu
from tuner.simulator.machine import Machine
from tuner.simulator.models import load_model_spec
from tuner.simulator.planner import Planner
from tuner.simulator.pools import Link, PooledEngines
from tuner.simulator.replica import SimRequest
from tuner.simulator.steady import Lengths
from tuner.simulator.verification import verify

GPU = load_gpu("h100")
SPEC = load_model_spec("llama-3.1-8b")
MACHINE = Machine(SPEC, GPU, ParallelLayout(), load_constants(GPU, moe=False))
CONFIG = EngineConfig(model="m", max_num_seqs=8, max_num_batched_tokens=8192, kv=KvConfig(block_tokens=16))


def engines(*, link: Link | None = None, stepping: bool = False, config: EngineConfig = CONFIG) -> PooledEngines:
    return PooledEngines((MACHINE, config, 2), (MACHINE, config, 1), link or Link(50e9), stepping=stepping)


def requests(count: int, output: int = 40) -> list[SimRequest]:
    return [SimRequest(str(n), 0.05 * n, (n + 1,) * (300 + 11 * n), output) for n in range(count)]


def test_every_request_gets_all_its_tokens_once_and_computes_its_prompt_once() -> None:
    pools, asked = engines(), requests(20)
    records = pools.run(asked, math.inf)
    assert {record.request_id for record in records} == {request.id for request in asked}
    assert all(record.output_tokens == len(record.token_times) == 40 for record in records)
    assert all(list(record.token_times) == sorted(record.token_times) for record in records)
    assert all(record.finish_reason is FinishReason.LENGTH for record in records)
    assert sum(step.computed_tokens for step in pools.steps()) == sum(len(request.prompt) for request in asked)
    for engine in pools.decode:
        assert engine.steps == []  # nothing there computes a prompt
        engine.scheduler.check_integrity()


def test_the_hand_over_delays_the_second_token_by_the_bytes_on_the_link() -> None:
    quick, slow = (engines(link=Link(rate, latency=0.0)).run(requests(1), math.inf)[0] for rate in (1e15, 1e9))
    size = 300 * SPEC.kv_bytes_per_token()
    assert slow.ttft == quick.ttft
    assert slow.gaps[0] - quick.gaps[0] == pytest.approx(size / 1e9, rel=1e-3)
    assert slow.gaps[1] == pytest.approx(quick.gaps[1])


def test_pools_that_leap_are_pools_that_step() -> None:
    small = CONFIG.model_copy(update={"kv": KvConfig(block_tokens=16, memory_bytes=90 * 16 * 131072)})
    leaping, stepping = (
        engines(stepping=flag, config=small).run(requests(12, output=150), 1.9) for flag in (False, True)
    )
    assert leaping == stepping
    assert any(record.failed for record in leaping)
    assert all(record.end >= 1.9 for record in leaping if record.failed)


def test_one_token_never_travels() -> None:
    pools = engines()
    (record,) = pools.run(requests(1, output=1), math.inf)
    assert record.output_tokens == 1
    assert not pools.decode[0].runner.ledger.ends


def test_the_analytic_path_of_pools_agrees_with_the_events() -> None:
    slos = [Slo.parse("ttft:p90<2s"), Slo.parse("tpot:p90<50ms")]
    constants = load_constants(GPU, moe=False)
    planner = Planner(SPEC, GPU, constants, devices=8, lengths=Lengths(2000, 150), slos=slos)
    plan = next(plan for plan in planner.screen().front if plan.prefill is not None)
    run = verify(planner, plan, slos)
    assert run.rate == pytest.approx(plan.rate, rel=0.1)
    assert run.tokens_per_joule == pytest.approx(plan.tokens_per_joule, rel=0.1)
    # Screened with every seat taken; where prefill is the narrower pool, seats stay empty and tokens come sooner.
    assert run.result.latencies["tpot"].p90 <= plan.tpot * 1.1
