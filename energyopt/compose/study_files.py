"""Reads study files, plans what they ask for, and makes a new revision of a study whose space has changed."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import Deployment, describe_validation, parse_config
from energyopt.core.errors import ConfigError, SensorUnavailableError
from energyopt.core.files import read_bounded
from energyopt.core.study import Space, StudyRecord, StudySpec, StudyState, TrialOutcome, TrialRecord, TrialState
from energyopt.core.units import Joules, Seconds
from engine.models import resolve_model
from telemetry.detect import Detection
from tuner.defaults import PowerRange, host_space
from tuner.evaluators.endpoint import takes
from tuner.evaluators.launched import DIALECTS
from tuner.evaluators.recorded import pinned
from tuner.paths import read_path
from tuner.space import Params, SearchSpace
from tuner.study_file import StudyFile
from tuner.workload.chat import chat_workload

from .engine_devices import find_used, identities, largest
from .evaluators import EVALUATOR_KEY, UNREAL, carried, check_choice, chosen
from .footprint import study_facts
from .machine import describe_machine, usable_cores
from .meters import device_identities, find_meter, highest_clock, power_range
from .results import Session
from .study import LAUNCH_SECONDS, PlannedStudy

MAX_BYTES = 2**20
REVISION_OF = "revision_of"
MACHINE = ("cpu", "cores", "memory", "energyopt", "torch")
"""Facts of a machine by which the same configuration is worth something else."""
AT_WORK = (StudyState.PLANNING, StudyState.RUNNING, StudyState.VERIFYING, StudyState.PAUSING)
"""States in which somebody works on a study and has to be told to stop."""


class _PlainLoader(yaml.SafeLoader):
    """YAML without aliases: a short file must not stand for a huge one."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise ConfigError("A study file may not have YAML aliases (*name): write the values out.")
        found: yaml.Node | None = super().compose_node(parent, index)
        return found


def read_study_file(path: Path) -> StudyFile:
    """The file, checked. Raises ConfigError with the key, the value and what is allowed."""
    return parse_config(StudyFile, _parsed(path, read_bounded(path, MAX_BYTES, what="study file")))


def _parsed(path: Path, raw: bytes) -> Mapping[str, Any]:
    try:
        text = raw.decode()
        if path.suffix == ".toml":
            return tomllib.loads(text)
        data = json.loads(text) if path.suffix == ".json" else yaml.load(text, _PlainLoader)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        words = " ".join(str(error).split())[:200]
        raise ConfigError(f"The study file {path} is no {path.suffix.lstrip('.') or 'YAML'}: {words}.") from error
    if not isinstance(data, dict):
        raise ConfigError(f"The study file {path} holds no mapping of keys; it needs model and slos at least.")
    return data


def plan_file(file: StudyFile) -> PlannedStudy:
    """The study that a file describes, on this machine. Raises ConfigError, SloError, ModelError."""
    local = file.evaluator.kind == "embedded"
    if local:
        resolve_model(file.model)
    baseline, choice = _baseline(file), file.evaluator
    simulated = choice.kind in UNREAL
    meter = _sensors(file, baseline)
    for source in meter.sources:
        source.close()
    devices, notes = _limitable(file, baseline)
    power = power_range(devices) if devices else None
    space = file.space() or _usual_knobs(file, baseline, devices, power)
    check_choice(choice, baseline, space)
    measured = simulated or bool(meter.sources) or choice.energy_url is not None
    if file.maximize == "tokens_per_joule" and not measured:
        raise ConfigError(f"tokens_per_joule cannot be maximised: no joules are measured. {' '.join(meter.reasons)}")
    load, budget, plan = file.workload, file.budgeted(), file.plan()
    spec = StudySpec(
        name=file.name or f"tune {file.model}",
        baseline=baseline,
        space=space,
        workload=chat_workload(seed=2 * load.seed, concurrency=load.concurrency),
        verify_workload=chat_workload(seed=2 * load.seed + 1, concurrency=load.concurrency),
        slos=file.slo_texts(),
        budget=budget,
        plan=plan,
        seed=load.seed,
        sampler=file.sampler,
        maximize=file.maximize or ("tokens_per_joule" if measured else "output_rate"),
    )
    points = SearchSpace(space, baseline).plan
    run = 0.5 if simulated else LAUNCH_SECONDS + plan.warmup + plan.window
    everything = (min(budget.trials, len(points.points)) + 2 * budget.verify_pairs) * run
    machine = describe_machine() | {"energy": " ".join(meter.reasons), "meter": file.meter}
    machine |= {**study_facts(file.footprint), EVALUATOR_KEY: file.evaluator.model_dump_json(exclude_defaults=True)}
    expected = Seconds(min(everything, budget.seconds or everything))
    count = max(len(devices), largest(spec).devices)
    most = None if power is None else Joules(power.high * count * expected)
    return PlannedStudy(spec, machine, len(points.points), points.removed, expected, (*meter.reasons, *notes), most)


def _sensors(file: StudyFile, baseline: Deployment) -> Detection:
    """What measures the baseline's devices; the source of a simulated or replayed joule is in its own result."""
    if file.evaluator.kind in UNREAL:
        return Detection((), (f"Joules are those of the {file.evaluator.kind}: nothing of this machine is measured.",))
    if file.evaluator.energy_url is not None:
        return Detection((), (f"Joules are read from {file.evaluator.energy_url}.",))
    if file.evaluator.kind == "embedded":
        return find_meter(file.meter, device_identities(baseline.decode.engine.device, baseline.devices))
    return find_used(file.evaluator, baseline, file.meter, MonotonicClock())


def _limitable(file: StudyFile, baseline: Deployment) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The devices whose limits may be set, and in words why there are none. Raises ConfigError for an absent GPU."""
    choice = file.evaluator
    if choice.kind in UNREAL:
        return (), ()
    if choice.kind == "embedded":
        return device_identities(baseline.decode.engine.device, baseline.devices), ()
    try:
        return identities(choice, baseline, MonotonicClock()), ()
    except SensorUnavailableError as error:
        return (), (f"Power limits are left alone. {error}",)


def _usual_knobs(file: StudyFile, baseline: Deployment, devices: Sequence[str], power: PowerRange | None) -> Space:
    """What is searched where the file names nothing: an endpoint's limits, else the knobs of this host."""
    choice = file.evaluator
    space = host_space(
        baseline,
        usable_cores(),
        concurrency=file.workload.concurrency,
        power=power,
        max_clock=highest_clock(devices) if devices else None,
    )
    if choice.kind == "endpoint":
        return Space(knobs=tuple(knob for knob in space.knobs if takes(knob)))
    if choice.kind in DIALECTS:
        return Space(knobs=tuple(knob for knob in space.knobs if carried(choice, baseline, knob)))
    return space


def _baseline(file: StudyFile) -> Deployment:
    try:
        prefill = None if file.prefill is None else file.pool(file.prefill)
        return Deployment(decode=file.pool(file.baseline), prefill=prefill)
    except ValidationError as error:
        raise ConfigError(f"baseline: {describe_validation(Deployment, error)}") from error


@dataclass(frozen=True, slots=True)
class Revision:
    """A study that goes on where another stopped, with another space; ``reused`` trials of ``measured`` were taken."""

    study: StudyRecord
    reused: int
    measured: int


def revise(session: Session, study_id: str, planned: PlannedStudy) -> Revision:
    """End a study and begin its next revision, with every trial of it that the new space still contains.

    A trial is taken over if it was measured under the same load, SLOs, plan and evaluator and is a point of the new
    space; the others stay with the old revision. Raises ConfigError for a study of other questions.
    """
    old = session.store.study(study_id)
    planned = replace(planned, machine=pinned(session.store, planned.machine))
    differing = _differing(old, planned)
    if differing:
        raise ConfigError(f"{differing} differs from study {old.id}: its trials say nothing here; make a new study.")
    space = SearchSpace(planned.spec.space, planned.spec.baseline)
    done = [t for t in session.store.trials(old.id) if t.state is TrialState.DONE and not t.origin.verifies]
    taken = [(trial, params) for trial in done if (params := _point(space, trial)) is not None]
    facts = dict(planned.machine) | {REVISION_OF: old.id}
    study = session.store.create_study(planned.spec, facts)
    for trial, params in taken:
        new = session.store.add_trial(study.id, params, trial.deployment, trial.origin)
        session.store.start_attempt(study.id, new.number, f"revision of {old.id}")
        session.store.finish_trial(
            study.id, new.number, trial.outcome or TrialOutcome.FAILED, result=trial.result, error=trial.error
        )
    session.store.add_event(study.id, "revised", {"of": old.id, "reused": len(taken), "measured": len(done)})
    session.store.change_state(old.id, StudyState.CANCELLING, when=AT_WORK)
    session.store.change_state(old.id, StudyState.CANCELLED, when=[StudyState.QUEUED, StudyState.PAUSED])
    return Revision(study, len(taken), len(done))


def _differing(old: StudyRecord, planned: PlannedStudy) -> str | None:
    """The first thing that makes measurements of the two incomparable."""
    mine, theirs = planned.spec, old.spec
    pairs: dict[str, tuple[object, object]] = {
        "baseline": (mine.baseline, theirs.baseline),
        "workload": (mine.workload, theirs.workload),
        "slos": (mine.slos, theirs.slos),
        "measure": (mine.plan, theirs.plan),
        "evaluator": (chosen(planned.machine), chosen(old.machine)),
        "meter": (planned.machine.get("meter"), old.machine.get("meter")),
    }
    if chosen(old.machine).kind not in UNREAL:
        pairs |= {f"machine ({key})": (planned.machine.get(key), old.machine.get(key)) for key in MACHINE}
    return next((name for name, (new, known) in pairs.items() if new != known), None)


def _point(space: SearchSpace, trial: TrialRecord) -> Params | None:
    """Where a measured deployment lies in the space; None if it is no point of it."""
    dumped = trial.deployment.model_dump()
    try:
        params = {knob.path: read_path(dumped, knob.path) for knob in space.knobs}
        return params if space.apply(params) == trial.deployment else None
    except (ConfigError, TypeError):  # not among a knob's values, or a pool that the deployment lacks
        return None
