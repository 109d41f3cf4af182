"""Stores of every kind, and things to put into them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from energyopt.core.clock import FakeClock
from energyopt.core.config import Deployment, EngineConfig, PoolConfig
from energyopt.core.results import EnergyReading, RunResult, Scope, Source, VerdictRecord, summarize, total_energy
from energyopt.core.study import Budget, Knob, Space, StudySpec
from energyopt.core.study_store import StudyStore
from energyopt.core.units import Joules, Seconds, Tokens
from energyopt.core.workload import Session, Turn, Workload
from energyopt.store.database import open_store
from energyopt.store.memory import MemoryStudyStore


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def deployment() -> Deployment:
    return Deployment(decode=PoolConfig(engine=EngineConfig(model="smollm2-135m", max_num_seqs=8)))


@pytest.fixture
def spec(deployment: Deployment) -> StudySpec:
    session = Session(id="s0", turns=(Turn(text='a\0 "quote" and 🙂', output_tokens=3, think_time=Seconds(0.1)),))
    workload = Workload(name="chat", seed=7, sessions=(session,), concurrency=2)
    knobs = (
        Knob(path="decode.engine.max_num_seqs", values=(1, 2.0, True, None, "auto")),
        Knob(path="decode.power.cap", values=(None, 300.5)),
    )
    return StudySpec(
        name="café",
        baseline=deployment,
        space=Space(knobs=knobs),
        workload=workload,
        verify_workload=workload,
        slos=("ttft:p90<500ms",),
        budget=Budget(trials=3),
    )


@pytest.fixture
def result() -> RunResult:
    """A run with everything in it: infinite latencies, mixed sources, a violated and an unknown verdict."""
    readings = (
        EnergyReading(
            device="GPU-1",
            joules=Joules(0.1 + 0.2),
            error=Joules(0.01),
            scope=Scope.GPU,
            source=Source.COUNTER,
            window=Seconds(2.5),
        ),
        EnergyReading(
            device="cpu",
            joules=Joules(1.5),
            error=Joules(math.inf),
            scope=Scope.SOCKET,
            source=Source.ESTIMATED,
            window=Seconds(2.5),
        ),
    )
    latency = summarize([0.25, 0.5, math.inf])
    assert latency is not None
    verdicts = tuple(
        VerdictRecord(
            slo=slo, state=state, estimate=excess, bound=None, violation=excess, samples=3, confidence=0.95, note="n"
        )
        for slo, state, excess in (("ttft:p90<500ms", "violated", math.inf), ("itl:p99<50ms", "met", -0.5))
    )
    return RunResult(
        window=Seconds(2.5),
        requests=3,
        failed_requests=1,
        prompt_tokens=Tokens(100),
        cached_tokens=Tokens(40),
        output_tokens=Tokens(9),
        latencies={"ttft": latency},
        verdicts=verdicts,
        energy=total_energy(readings),
        readings=readings,
        power_valid=True,
        hits_by_tier={"device": 40},
        peak_memory_bytes=2**40,
    )


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database that does not hold anything yet, of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'results' / 'energyopt.db'}"
    address: str = request.getfixturevalue("postgres_url")
    return address


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[StudyStore]:
    """A store of every kind, on the fake clock."""
    if request.param == "memory":
        yield MemoryStudyStore(clock)
        return
    address = f"sqlite:///{tmp_path}/e.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with open_store(address, clock=clock) as opened:
        yield opened


@pytest.fixture
def study(store: StudyStore, spec: StudySpec) -> str:
    """The id of a study that was just made."""
    return store.create_study(spec, {"cpu": "x"}).id
