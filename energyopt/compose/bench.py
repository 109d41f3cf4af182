"""Builds a benchmark: workload, server, meter, load; runs it and keeps what came out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import uvloop
from pydantic import Field, model_validator

from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.config import Config
from energyopt.core.errors import ConfigError, SensorError
from energyopt.core.results import Scope
from energyopt.core.slo import Slo
from energyopt.core.units import Seconds
from tuner.ports import Meter, Progress, ProgressSink
from tuner.replay import agentx
from tuner.replay.calibrate import calibrate
from tuner.replay.counters import ServerCounters
from tuner.replay.dispatch import Dispatcher
from tuner.replay.figures import figures
from tuner.replay.foresight import Foresight
from tuner.replay.http import Endpoint, HttpClient
from tuner.replay.loads import ClosedLoop, Deck, Load, OpenLoop, RandomDeparture, drawn_times, recorded_times
from tuner.replay.measure import Recording, ReplayPlan, replay
from tuner.replay.pacer import Pace, Pacer
from tuner.replay.page import PageMeter
from tuner.replay.player import Stage
from tuner.replay.render import Answers, Calibration, ChatRenderer, IdRenderer, Renderer
from tuner.replay.result import BenchResult, Subject
from tuner.workload.arrivals import parse_arrivals
from tuner.workload.trace import Trace

from .host_meter import host_meter
from .served import Served, serving
from .workloads import WorkloadRequest, build_workload


class BenchRequest(Config):
    """What ``energyopt bench`` was asked; see its options.

    ``arrivals`` None keeps ``concurrency`` sessions alive; "recorded" or a process starts them on time. ``duration``
    None plays the workload once; left out, it is what the scenario needs.
    """

    target: str
    workload: WorkloadRequest = WorkloadRequest()
    model: str | None = None
    api_key: str | None = None
    endpoint: Literal["chat", "completions"] = "chat"
    concurrency: int = Field(8, ge=1)
    arrivals: str | None = None
    duration: Seconds | None = Field(Seconds(30.0), gt=0)
    warmup: Seconds = Field(Seconds(5.0), ge=0)
    slos: tuple[str, ...] = ()
    speedup: float = Field(1.0, gt=0)
    gap_cap: Seconds | None = Field(None, ge=0)
    idle_cap: Seconds | None = Field(None, gt=0)
    delays: bool = True
    cache_bust: bool = False
    answers: Answers = "live"
    ignore_eos: bool = True
    patience: Seconds | None = Field(None, gt=0)
    abandon: float = Field(0.0, ge=0, le=1)
    meter: str = "auto"
    energy_url: str | None = None
    devices: int | None = Field(None, ge=1)
    prefill_devices: tuple[str, ...] = ()
    seed: int = 0
    scenario: Literal["agentx"] | None = None
    timeout: Seconds = Field(Seconds(7200.0), gt=0)

    @model_validator(mode="before")
    @classmethod
    def _long_enough(cls, said: Any) -> Any:
        if isinstance(said, dict) and said.get("scenario") == "agentx":
            return {"duration": agentx.SHORTEST, **said}
        return said

    @model_validator(mode="after")
    def _measures_its_pools(self) -> BenchRequest:
        if self.prefill_devices and self.meter == "none" and self.energy_url is None:
            raise ValueError("prefill_devices tells joules apart, but nothing is measured: meter is none")
        return self


@dataclass(frozen=True, slots=True)
class Plan:
    """A request with what was built for it."""

    request: BenchRequest
    trace: Trace
    slos: tuple[Slo, ...]


def plan_bench(request: BenchRequest) -> Plan:
    """Read the workload and check everything that needs no server. Raises ConfigError, SloError."""
    plan = Plan(request, build_workload(request.workload), tuple(Slo.parse(text) for text in request.slos))
    if request.duration is None and request.arrivals is None and not plan.trace.sessions:
        raise ConfigError("The workload has no session.")
    _times(plan)
    if request.scenario == "agentx":
        _check_agentx(plan)
    return plan


def _check_agentx(plan: Plan) -> None:
    """The scenario leaves no choice in what would make two results incomparable."""
    request = plan.request
    agentx.check(plan.trace)
    if request.arrivals is not None or request.duration is None or not request.ignore_eos or not request.delays:
        raise ConfigError(
            "AgentX fixes the load: a closed loop with recorded waits and exact output lengths, for a duration. "
            "Leave out --arrivals, --once, --no-ignore-eos and --no-delays."
        )


def run_bench(plan: Plan, progress: ProgressSink) -> BenchResult:
    """Start what is needed, replay, measure. Raises LaunchError, EngineError, SensorError and their like."""
    request, clock = plan.request, MonotonicClock()
    with serving(request.target, request.model, request.api_key) as served, _metered(request, clock) as meter:
        counters = ServerCounters(f"{served.url}/metrics")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            recording = runner.run(_replay(plan, served, clock, counters, progress))
        subject = Subject(
            endpoint=served.url,
            model=served.model,
            workload=plan.trace.name,
            mode=_mode(request),
            seed=request.seed,
            scenario=request.scenario,
            devices=_devices(request, meter, recording),
        )
        doubts = agentx.faults(recording.window.length) if request.scenario == "agentx" else ()
        return figures(
            recording,
            subject,
            plan.slos,
            meter,
            clock.utc(),
            sources=counters.sources,
            account=counters.joules,
            prefill_devices=request.prefill_devices,
            doubts=doubts,
        )


async def _replay(
    plan: Plan, served: Served, clock: Clock, counters: ServerCounters, progress: ProgressSink
) -> Recording:
    request = plan.request
    endpoint = Endpoint(served.url, served.model, request.api_key, ignore_eos=request.ignore_eos)
    async with HttpClient(endpoint, clock) as client:
        stage = await stage_for(plan, client, clock)
        steady = ReplayPlan(warmup=request.warmup, window=request.duration, timeout=request.timeout)
        load = load_for(plan)
        if isinstance(load, agentx.AgentxLoop):
            progress(Progress("priming", 0.0))
            await load.prime(stage)
        return await replay(load, stage, steady, clock, progress, counters.snap)


async def stage_for(plan: Plan, client: HttpClient, clock: Clock) -> Stage:
    """What the players share. Asks the server twice where filler has to be fitted to its tokenizer."""
    request, trace = plan.request, plan.trace
    pacer = Pacer(clock, _pace(request).idle_cap)
    renderer: Renderer
    if request.endpoint == "completions":
        renderer = IdRenderer(trace.block_tokens, seed=request.seed)
    else:
        filler = any(not call.messages for call in trace.calls)
        calibration = await calibrate(client, clock) if filler else Calibration()
        renderer = ChatRenderer(trace.block_tokens, calibration=calibration, answers=request.answers, seed=request.seed)
    leaving = None
    if request.abandon:
        leaving = RandomDeparture(request.abandon, Seconds(5.0), request.seed)
    return Stage(
        dispatcher=Dispatcher(client, clock, pacer),
        rendering=renderer,
        pacer=pacer,
        pace=_pace(request),
        foresight=Foresight(trace.block_tokens),
        patience=request.patience,
        abandonment=leaving,
    )


def _pace(request: BenchRequest) -> Pace:
    """As asked; what the scenario says about caps holds where nothing else was said."""
    usual = agentx.PACE if request.scenario == "agentx" else Pace()
    return Pace(
        speedup=request.speedup,
        gap_cap=usual.gap_cap if request.gap_cap is None else request.gap_cap,
        idle_cap=usual.idle_cap if request.idle_cap is None else request.idle_cap,
        waits=request.delays,
    )


def load_for(plan: Plan) -> Load:
    """How the sessions come. Without a duration the workload is played once."""
    request = plan.request
    if request.scenario == "agentx":
        return agentx.AgentxLoop(plan.trace, request.concurrency, request.seed)
    deck = Deck(plan.trace, bust=request.cache_bust, rounds=1 if request.duration is None else None)
    times = _times(plan)
    if times is not None:
        return OpenLoop(deck.deal(), times)
    return ClosedLoop(deck.deal(), request.concurrency)


def _times(plan: Plan) -> list[Seconds] | None:
    """When sessions start in an open loop; None in a closed one."""
    request, trace = plan.request, plan.trace
    if request.arrivals is None:
        return None
    if request.arrivals == "recorded":
        return recorded_times(trace, request.speedup)
    process = parse_arrivals(request.arrivals)
    count, last = len(trace.sessions), (request.warmup + (request.duration or 0.0))
    times = drawn_times(process, count, request.seed)
    while request.duration is not None and times[-1] < last + 5.0:
        count *= 2
        times = drawn_times(process, count, request.seed)
    return times


@contextmanager
def _metered(request: BenchRequest, clock: Clock) -> Iterator[Meter | None]:
    """The meter that was asked for, sampling: a page, the local sensors, or none."""
    if request.energy_url is not None:
        page = PageMeter(request.energy_url, clock, expected=request.devices)
        page.start()
        try:
            yield page
        finally:
            page.stop()
    elif request.meter == "none":
        yield None
    else:
        local = host_meter(request.meter, clock)
        local.start()
        try:
            yield local
        finally:
            local.stop()


def _devices(request: BenchRequest, meter: Meter | None, recording: Recording) -> int:
    """Devices for figures per device: as told, else the GPUs that were measured, else one."""
    if request.devices is not None or meter is None:
        return request.devices or 1
    try:
        readings = meter.readings(recording.window.start, recording.window.end)
    except SensorError:  # the figures give the reason
        return 1
    return max(1, len({reading.device for reading in readings if reading.scope is Scope.GPU}))


def _mode(request: BenchRequest) -> str:
    if request.arrivals is not None:
        return f"open loop, {request.arrivals}"
    return f"closed loop, {request.concurrency} sessions"
