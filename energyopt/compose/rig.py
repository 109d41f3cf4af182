"""Builds a running engine with its meter: for the process of one trial, and for the service."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock

from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.config import EngineConfig
from energyopt.core.errors import ModelFormatError, SensorError
from energyopt.core.records import RequestRecord, StepRecord
from energyopt.core.results import EnergyTotal, total_energy
from energyopt.core.units import Seconds
from engine.batch import Runner
from engine.disagg.ports import Remote
from engine.front import EngineFront
from engine.kv.economy import Economy, EnergyBetween
from engine.kv.tiers import Tiers
from engine.models import OpenedModel
from engine.offload import exchange_for, tiers_for
from engine.replicated import ReplicatedFront, open_front
from engine.runners import AnyRunner, open_runner
from telemetry.cost_model import FittedWeight
from telemetry.idle import IdlePolicy
from telemetry.meter import Meter
from tuner.evaluators.client import EngineClient
from tuner.worker import TrialRig
from tuner.workload.trace import Message

from .meters import find_meter

OnStep = Callable[[StepRecord], None]
OnRequest = Callable[[RequestRecord], None]


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """An engine that serves and a meter that samples. ``close`` ends both; idempotent."""

    loaded: OpenedModel
    front: EngineFront | ReplicatedFront
    meter: Meter

    def close(self) -> None:
        self.front.close()
        self.meter.stop()


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A model on its device and the meter of that device, before the first request."""

    config: EngineConfig
    loaded: OpenedModel
    runner: AnyRunner
    meter: Meter
    clock: Clock
    tiers: Tiers | None
    economy: Economy
    remote: Remote | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    """What the sensors call the runner's devices, where they call them otherwise."""

    def start(self, on_step: OnStep, on_request: OnRequest) -> RunningEngine:
        """Begin to sample and to serve; every step goes to the meter's ledger, then to ``on_step``."""
        self.meter.start()
        one_at_a_time = Lock()

        def record(step: StepRecord) -> None:
            if self.names:
                step = replace(step, devices=tuple(self.names.get(device, device) for device in step.devices))
            with one_at_a_time:  # replicas step on threads of their own
                self.meter.record(step)
                self.economy.on_step(step)
                on_step(step)

        def make(runner: Runner) -> EngineFront:
            return EngineFront(
                self.config,
                runner,
                self.loaded.tokenizer,
                max_model_len=self.loaded.max_model_len,
                clock=self.clock,
                on_step=record,
                on_request=on_request,
                tiers=self.tiers,
                remote=self.remote,
                energy=_energy_of(self.meter) if self.meter.channels else None,
            )

        front = open_front(self.runner, make)
        return RunningEngine(self.loaded, front, self.meter)


def load_engine(
    config: EngineConfig, meter_kind: str, *, idle: IdlePolicy | None = None, tenants: Iterable[str] = ()
) -> LoadedEngine:
    """Load the model and find the meter of its devices; ``idle`` and ``tenants`` are for its account.

    Raises ModelError, ConfigError, OutOfMemoryError, SensorUnavailableError.
    """
    clock = MonotonicClock()
    loaded, runner = open_runner(config, clock)
    found = find_meter(meter_kind, runner.devices, clock)
    meter = Meter(
        found.sources,
        clock,
        found.reasons,
        weigh=FittedWeight(),
        idle=idle,
        tenants=tenants,
        statuses=found.statuses,
    )
    economy = Economy(_energy_of(meter) if meter.channels else None)
    tiers = tiers_for(config, loaded, runner, clock, economy=economy)
    remote = exchange_for(config, loaded, runner, clock)
    return LoadedEngine(config, loaded, runner, meter, clock, tiers, economy, remote, found.names)


def _energy_of(meter: Meter) -> EnergyBetween:
    """Joules of all sensors between two times, from what was sampled; no driver is called and nothing waits."""
    curves = [channel.curve for channel in meter.channels]

    def between(start: float, end: float) -> EnergyTotal | None:
        try:
            return total_energy([curve.window(Seconds(start), Seconds(end)) for curve in curves])
        except SensorError:
            return None  # not covered yet, or a gap: asked again until it is old

    return between


def build_rig(config: EngineConfig, meter_kind: str) -> TrialRig:
    """The rig of one trial. Raises what ``start_engine`` raises; ModelFormatError for a model without a template."""
    ready = load_engine(config, meter_kind)
    chat, tokenizer = ready.loaded.chat, ready.loaded.tokenizer
    if chat is None:
        raise ModelFormatError(f"The model {config.model} has no chat template, and the workload is a chat.")
    steps: list[StepRecord] = []
    engine = ready.start(steps.append, ignore_request)

    def render(messages: Sequence[Message]) -> list[int]:
        return tokenizer.encode(chat.render(messages))

    return TrialRig(EngineClient(engine.front, render, ready.clock), engine.meter, steps, engine.close)


def ignore_request(record: RequestRecord) -> None:
    """A trial takes its request records from the load generator, which also sees what was refused."""
