"""Builds studies: from a request to a specification, and from a stored specification to a run and its artifacts."""

from __future__ import annotations

import os
import socket
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import Config, Deployment, DeviceKind, DType, EngineConfig, KvConfig, PoolConfig
from energyopt.core.errors import ConfigError
from energyopt.core.footprint import FootprintConfig
from energyopt.core.slo import Slo
from energyopt.core.study import Budget, MeasurePlan, Sampler, StudyRecord, StudySpec, StudyState
from energyopt.core.units import Joules, Seconds, format_duration
from engine.models import resolve_model
from telemetry.detect import Detection
from tuner.defaults import host_space
from tuner.evaluators.choice import EvaluatorChoice
from tuner.evaluators.recorded import pinned
from tuner.evaluators.settled import SettledEvaluator
from tuner.loop import StudyRunner
from tuner.ports import AccuracyGate, Evaluator, PowerController
from tuner.progress import StudyProgressSink
from tuner.space import SearchSpace
from tuner.workload.chat import chat_workload

from .engine_devices import find_used, largest
from .evaluators import UNREAL, chosen, make_evaluator, no_power, powered
from .footprint import study_facts
from .machine import describe_machine, usable_cores
from .machine_kind import check_same_kind
from .meters import MeterName, device_identities, find_meter, highest_clock, power_range
from .power import power_controller, put_back_left
from .results import Session, write_artifacts
from .settle import HostBusy
from .verify import ServedGate

TRIAL_COMMAND = (sys.executable, "-P", "-c", "import sys; from energyopt.cli.trial import main; sys.exit(main())")
"""The trial worker, found through this interpreter: no PATH, no current directory."""

LAUNCH_SECONDS = 8.0
"""Start of one trial's process until it takes load: import of torch 2 s, a model of 135M from GGUF 2-4 s (2 cores)."""

DEFAULT_SLOS = ("ttft:p90<2s", "itl:p99<1s")
QUICK_SLOS = ("ttft:p90<3s", "itl:p99<2s")
"""Loose enough for a shared virtual machine: a first study should end in a comparison."""


class TuneRequest(Config):
    """What ``energyopt tune`` was asked. None takes the default of the mode (quick or full)."""

    model: str
    slos: tuple[str, ...] = ()
    quick: bool = False
    trials: int | None = None
    time_limit: Seconds | None = None
    window: Seconds | None = None
    pairs: int | None = None
    concurrency: int = 8
    seed: int = 0
    sampler: Sampler = "auto"
    meter: MeterName = "auto"
    device: DeviceKind = "auto"
    dtype: DType = "auto"
    max_model_len: int | None = None
    kv: KvConfig = KvConfig()
    footprint: FootprintConfig = FootprintConfig()


@dataclass(frozen=True, slots=True)
class PlannedStudy:
    """A study before it is stored: its spec, the size of its space, and what it will cost in time and energy.

    ``most_joules`` is what its devices would take at their highest limit all the while; None where no limit is known.
    """

    spec: StudySpec
    machine: Mapping[str, str]
    valid_points: int
    removed: Mapping[str, int]
    expected_seconds: Seconds
    meter_notes: tuple[str, ...]
    most_joules: Joules | None = None

    def document(self) -> dict[str, object]:
        """The plan as one JSON-ready document; the generated sessions are left out for their length."""
        return {
            "spec": self.spec.model_dump(mode="json", exclude={"workload", "verify_workload"}),
            "machine": dict(self.machine),
            "valid_points": self.valid_points,
            "removed": dict(self.removed),
            "expected_seconds": self.expected_seconds,
            "most_joules": self.most_joules,
            "energy": list(self.meter_notes),
        }


def plan_study(request: TuneRequest) -> PlannedStudy:
    """The study that answers ``request`` on this machine. Reads sensors' presence and the model's header, no more.

    Raises ConfigError, SloError, ModelError.
    """
    slos = tuple(str(Slo.parse(text)) for text in request.slos or (QUICK_SLOS if request.quick else DEFAULT_SLOS))
    resolve_model(request.model)
    baseline = Deployment(decode=PoolConfig(engine=_baseline_engine(request)))
    devices = device_identities(request.device, baseline.devices)
    meter = find_meter(request.meter, devices)
    for source in meter.sources:
        source.close()  # only their presence matters here; each trial opens its own
    power = power_range(devices)
    space = host_space(
        baseline,
        usable_cores(),
        concurrency=request.concurrency,
        power=power,
        max_clock=highest_clock(devices),
        quick=request.quick,
    )
    budget, plan = _budget(request)
    spec = StudySpec(
        name=f"tune {request.model}",
        baseline=baseline,
        space=space,
        workload=chat_workload(seed=2 * request.seed, concurrency=request.concurrency),
        verify_workload=chat_workload(seed=2 * request.seed + 1, concurrency=request.concurrency),
        slos=slos,
        budget=budget,
        plan=plan,
        seed=request.seed,
        sampler=request.sampler,
        maximize="tokens_per_joule" if meter.sources else "output_rate",
    )
    points = SearchSpace(space, baseline).plan
    run = LAUNCH_SECONDS + plan.warmup + plan.window
    everything = (min(budget.trials, len(points.points)) + 2 * budget.verify_pairs) * run
    expected = min(everything, budget.seconds or everything)
    machine = describe_machine() | {"energy": " ".join(meter.reasons), "meter": request.meter}
    machine |= study_facts(request.footprint)
    most = None if power is None else Joules(power.high * len(devices) * expected)
    return PlannedStudy(spec, machine, len(points.points), points.removed, Seconds(expected), meter.reasons, most)


def _baseline_engine(request: TuneRequest) -> EngineConfig:
    return EngineConfig(
        model=request.model,
        device=request.device,
        dtype=request.dtype,
        max_model_len=request.max_model_len,
        kv=request.kv,
    )


def _budget(request: TuneRequest) -> tuple[Budget, MeasurePlan]:
    """Trials, pairs and windows of the mode, within the time limit if there is one."""
    trials = request.trials or (8 if request.quick else 24)
    pairs = request.pairs if request.pairs is not None else (3 if request.quick else 4)
    window = request.window or Seconds(8.0 if request.quick else 30.0)
    plan = MeasurePlan(warmup=Seconds(2.0 if request.quick else 5.0), window=window, timeout=Seconds(window + 240.0))
    plan = plan.model_copy(update={"settle": Seconds(0.0 if request.quick else 15.0)})
    limit = request.time_limit or (Seconds(280.0) if request.quick else None)
    shortest = (1 + 2 * pairs) * (LAUNCH_SECONDS + plan.warmup + plan.window)
    if limit is not None and limit < shortest:
        raise ConfigError(
            f"A time limit of {format_duration(limit)} is too short: the baseline and {pairs} verification pairs "
            f"take about {format_duration(shortest)}."
        )
    return Budget(trials=trials, seconds=limit, verify_pairs=pairs), plan


def create_study(session: Session, planned: PlannedStudy) -> str:
    """Store a planned study; it runs with ``run_study``. Raises NotFoundError, ConfigError for what none can replay."""
    return session.store.create_study(planned.spec, pinned(session.store, planned.machine)).id


def run_study(
    session: Session, study_id: str, on_progress: StudyProgressSink, *, owner: str | None = None
) -> StudyRecord:
    """Run or resume a study to its end and write its artifacts, also when nothing is feasible.

    ``owner`` is who holds the study already, if somebody does. Raises NoFeasibleError, ConfigError for one that was
    measured on another kind of machine, and whatever stopped it.
    """
    study, clock = session.store.study(study_id), MonotonicClock()
    if chosen(study.machine).kind not in UNREAL:
        check_same_kind(session, study)
    evaluator, power = study_tools(session, study)
    gate = study_gate(study)
    runner = StudyRunner(session.store, evaluator, power, clock, owner or new_owner(), on_progress, gate=gate)
    try:
        return runner.run(study_id)
    finally:
        write_outcome(session, study_id)


def study_tools(session: Session, study: StudyRecord) -> tuple[Evaluator, PowerController]:
    """What measures the trials of a study on this machine, and what sets the limits of its devices.

    Limits that a process which died has left are put back first. Raises ConfigError, LaunchError, ControlError.
    """
    choice = chosen(study.machine)
    evaluator = make_evaluator(session, study, TRIAL_COMMAND)
    if choice.kind in UNREAL:
        return evaluator, no_power()
    found = _sensors(study, choice)
    for source in found.sources:
        source.close()  # each trial opens its own
    put_back_left()
    return SettledEvaluator(evaluator, HostBusy(found.statuses), MonotonicClock()), _limits(study, choice)


def study_gate(study: StudyRecord) -> AccuracyGate | None:
    """What compares answers with the baseline's; None where the engine is not ours."""
    return ServedGate(study.spec.baseline) if chosen(study.machine).kind == "embedded" else None


def write_outcome(session: Session, study_id: str) -> None:
    """The artifacts of a study that found something, or that nothing keeps its SLOs."""
    if session.store.study(study_id).state in (StudyState.SUCCEEDED, StudyState.NO_FEASIBLE):
        write_artifacts(session, study_id)


def _sensors(study: StudyRecord, choice: EvaluatorChoice) -> Detection:
    """What tells whether the devices of a study's largest configuration are cool."""
    kind, most = study.machine.get("meter", "auto"), largest(study.spec)
    if choice.kind == "embedded":
        return find_meter(kind, device_identities(most.decode.engine.device, most.devices))
    return find_used(choice, most, kind, MonotonicClock())


def _limits(study: StudyRecord, choice: EvaluatorChoice) -> PowerController:
    """Limits of every device that a configuration of the study may use, whatever its layout."""
    most = largest(study.spec)
    if choice.kind == "embedded":
        return power_controller(device_identities(most.decode.engine.device, most.devices))
    return powered(study)


def new_owner() -> str:
    """A name that no other process or run has."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
