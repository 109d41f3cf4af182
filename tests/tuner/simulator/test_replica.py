"""The simulated engine: leaping equals stepping, joules add up, and the evaluator says that it simulates."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.config import Deployment, EngineConfig, KvConfig, ParallelLayout, PoolConfig
from energyopt.core.errors import LaunchError, OutOfMemoryError
from energyopt.core.results import RunResult, Source
from energyopt.core.slo import Slo
from energyopt.core.study import MeasurePlan
from energyopt.core.units import Hertz, Seconds, Watts
from energyopt.core.workload import Session, Turn, Workload
from tuner.evaluators.simulated import SimulatedEvaluator
from tuner.simulator.constants import load_constants
from tuner.simulator.hardware import load_gpu
from tuner.simulator.machine import Machine
from tuner.simulator.meter import SimulatedMeter
from tuner.simulator.models import load_model_spec
from tuner.simulator.replica import Replica, SimRequest

GPU = load_gpu("h100")
SPEC = load_model_spec("llama-3.1-8b")
MACHINE = Machine(SPEC, GPU, ParallelLayout(), load_constants(GPU, moe=False))


def run(requests: list[SimRequest], config: EngineConfig, *, stepping: bool) -> Replica:
    replica = Replica(MACHINE, config, stepping=stepping)
    for request in requests:
        replica.submit(request)
    replica.run(math.inf)
    replica.scheduler.check_integrity()
    return replica


@st.composite
def loads(draw: st.DrawFn) -> list[SimRequest]:
    count = draw(st.integers(1, 12))
    return [
        SimRequest(
            id=str(number),
            arrival=draw(st.floats(0, 1)),
            prompt=tuple(draw(st.lists(st.integers(0, 3), min_size=1, max_size=60))),
            output_tokens=draw(st.integers(1, 90)),
        )
        for number in range(count)
    ]


@settings(max_examples=40, deadline=None)
@given(
    requests=loads(),
    seats=st.integers(1, 8),
    caching=st.booleans(),
    blocks=st.sampled_from([None, 12, 20]),
    data=st.data(),
)
def test_leaping_and_stepping_give_the_same_records(
    requests: list[SimRequest], seats: int, caching: bool, blocks: int | None, data: st.DataObject
) -> None:
    memory = None if blocks is None else round(blocks * 16 * SPEC.kv_bytes_per_token())
    config = EngineConfig(
        model="llama-3.1-8b",
        max_num_seqs=seats,
        max_num_batched_tokens=data.draw(st.sampled_from([16, 64, 2048])),
        kv=KvConfig(block_tokens=16, prefix_caching=caching, memory_bytes=memory),
    )
    leaping, stepping = (run(requests, config, stepping=flag) for flag in (False, True))
    assert leaping.records == stepping.records
    assert leaping.steps == stepping.steps
    assert list(leaping.runner.ledger.ends) == list(stepping.runner.ledger.ends)
    assert list(leaping.runner.ledger.watts) == list(stepping.runner.ledger.watts)
    assert vars(leaping.scheduler.counters) == vars(stepping.scheduler.counters)


def test_a_leap_is_taken_where_one_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica(MACHINE, EngineConfig(model="llama-3.1-8b"))
    calls = 0
    schedule = replica.scheduler.schedule

    def counting() -> object:
        nonlocal calls
        calls += 1
        return schedule()

    monkeypatch.setattr(replica.scheduler, "schedule", counting)
    replica.submit(SimRequest("one", 0.0, (1,) * 32, 400))
    replica.run(math.inf)
    assert len(replica.records[0].token_times) == 400
    assert calls < 10


def test_energy_of_a_window_is_the_sum_over_its_parts() -> None:
    replica = run(
        [SimRequest(str(n), 0.3 * n, (1,) * 400, 50) for n in range(5)], EngineConfig(model="m"), stepping=False
    )
    meter = SimulatedMeter([replica.runner])
    end = replica.clock.now()

    def joules(low: float, high: float) -> float:
        (reading,) = meter.readings(Seconds(low), Seconds(high))
        split = meter.split([], Seconds(low), Seconds(high))
        assert split is not None
        assert split.total == pytest.approx(reading.joules)
        assert reading.source is Source.SIMULATED
        return reading.joules

    cut = 0.37 * end
    assert joules(0.0, cut) + joules(cut, end) == pytest.approx(joules(0.0, end))
    assert joules(end, end + 2.0) == pytest.approx(2.0 * GPU.value("idle"))


def evaluate(pool: PoolConfig, gpu: str = "h100") -> RunResult:
    turns = (Turn(text="question " * 40, output_tokens=40), Turn(text="and then? " * 20, output_tokens=30))
    sessions = tuple(Session(id=str(n), turns=turns, system="You answer. " * 20) for n in range(6))
    workload = Workload(name="chat", seed=0, sessions=sessions, concurrency=4)
    plan = MeasurePlan(warmup=Seconds(1.0), window=Seconds(5.0))
    slos = [Slo.parse("ttft:p90<1s"), Slo.parse("itl:p99<100ms")]
    return SimulatedEvaluator(gpu, model="llama-3.1-8b").run(
        Deployment(decode=pool), workload, plan, slos, lambda progress: None
    )


def pool(**power: float) -> PoolConfig:
    chosen = {"cap": Watts(power["cap"])} if "cap" in power else {}
    clock = {"sm_clock": Hertz(power["clock"])} if "clock" in power else {}
    return PoolConfig.model_validate({"engine": EngineConfig(model="any"), "power": {**chosen, **clock}})


def test_a_trial_on_the_simulator_reports_what_a_live_one_does_and_says_that_it_is_simulated() -> None:
    result = evaluate(pool())
    assert result.simulated
    assert result.power_valid, result.power_reasons
    assert result.energy is not None
    assert result.energy.sources == (Source.SIMULATED,)
    assert result.feasible
    assert set(result.latencies) == {"ttft", "itl", "tpot", "e2e"}
    assert result.cached_tokens  # the second turn finds the first
    assert result.split is not None
    assert result.split.total == pytest.approx(result.energy.joules)
    assert "simulated" in result.power_reasons[0]


def test_a_lower_clock_saves_joules_and_costs_time() -> None:
    fast, slow = evaluate(pool()), evaluate(pool(clock=1.2e9))
    assert slow.tokens_per_joule is not None
    assert fast.tokens_per_joule is not None
    assert slow.tokens_per_joule > fast.tokens_per_joule
    assert slow.latencies["tpot"].mean > fast.latencies["tpot"].mean


def test_what_does_not_fit_or_exist_is_a_typed_error() -> None:
    big = PoolConfig(engine=EngineConfig(model="any"))
    workload = Workload(
        name="w", seed=0, concurrency=1, sessions=(Session(id="a", turns=(Turn(text="x", output_tokens=1),)),)
    )
    evaluator = SimulatedEvaluator("h100", model="llama-3.1-70b")
    with pytest.raises(OutOfMemoryError, match="does not fit"):
        evaluator.run(Deployment(decode=big), workload, MeasurePlan(), [], lambda progress: None)
    with pytest.raises(LaunchError, match="cap of 50 W"):
        evaluate(pool(cap=50.0))
