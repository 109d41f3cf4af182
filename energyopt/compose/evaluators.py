"""Builds the evaluator that a study asks for, with the meter and the memory gauge of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import ValidationError

from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.config import Deployment, PowerConfig
from energyopt.core.errors import ConfigError, SensorUnavailableError
from energyopt.core.study import Knob, Space, StudyRecord
from telemetry.meter import Meter as HostMeter
from tuner.evaluators.chat_http import MeterOf
from tuner.evaluators.choice import EVALUATOR_KEY, EvaluatorChoice
from tuner.evaluators.choice import evaluator_choice as chosen
from tuner.evaluators.embedded import EmbeddedEvaluator
from tuner.evaluators.endpoint import EndpointEvaluator, check_knobs
from tuner.evaluators.launched import DIALECTS, Launch, LaunchedEvaluator
from tuner.evaluators.recorded import RecordedEvaluator, recorded_study
from tuner.evaluators.simulated import SimulatedEvaluator
from tuner.paths import with_path
from tuner.ports import Evaluator, Meter, PowerController
from tuner.replay.http import Endpoint
from tuner.replay.page import PageMeter

from .engine_devices import elsewhere, find_used, identities, largest
from .free_memory import FreeMemory
from .power import power_controller
from .results import Session, study_folder
from .served import first_model

__all__ = ["EVALUATOR_KEY", "UNREAL", "carried", "check_choice", "chosen", "make_evaluator", "no_power", "powered"]

UNREAL = ("simulator", "replay")
"""Kinds that no hardware answers: nothing of this machine is set or waited for."""


class _NoPower:
    """Sets nothing."""

    @contextmanager
    def applied(self, power: PowerConfig) -> Iterator[None]:
        yield


def no_power() -> PowerController:
    """For evaluators without devices: their limits are part of what is computed."""
    return _NoPower()


def make_evaluator(session: Session, study: StudyRecord, embedded: tuple[str, ...]) -> Evaluator:
    """The evaluator of a study; ``embedded`` is the command of the trial worker.

    Raises ConfigError for a choice that does not fit the study, LaunchError if an endpoint does not answer.
    """
    choice, logs = chosen(study.machine), study_folder(session, study.id) / "logs"
    kind = study.machine.get("meter", "auto")
    if choice.kind == "embedded":
        return EmbeddedEvaluator(embedded, log_dir=logs, meter=kind)
    if choice.kind == "simulator":
        return SimulatedEvaluator(choice.hardware or "", constants=choice.constants)
    if choice.kind == "replay":
        source = recorded_study(session.store, choice)
        return RecordedEvaluator(source.spec, session.store.trials(source.id))
    check_choice(choice, study.spec.baseline, study.spec.space)
    clock = MonotonicClock()
    meter_of = _meter_of(choice, kind, clock)
    if choice.kind == "endpoint":
        return EndpointEvaluator(_endpoint(choice), meter_of, clock)
    launch = Launch(
        program=choice.command,
        arguments=choice.arguments,
        environment=dict(word.split("=", 1) for word in choice.environment),
        free_memory=FreeMemory(lambda: identities(choice, largest(study.spec), clock)),
        log_dir=logs,
    )
    return LaunchedEvaluator(DIALECTS[choice.kind], launch, meter_of, clock)


def check_choice(choice: EvaluatorChoice, baseline: Deployment, space: Space) -> None:
    """Raises ConfigError for knobs that the evaluator cannot turn: those of an engine that runs, or of another host."""
    if choice.kind in DIALECTS:
        mute = next((knob.path for knob in space.knobs if not carried(choice, baseline, knob)), None)
        if mute is not None:
            raise ConfigError(f"The knob {mute!r} has no effect: {choice.kind} cannot be told of it.")
    if choice.kind != "endpoint":
        return
    check_knobs(space)
    limits = [knob.path for knob in space.knobs if ".power." in knob.path]
    limits += ["baseline.power"] if baseline.decode.power != PowerConfig() else []
    if limits and elsewhere(choice):
        raise ConfigError(
            f"{limits[0]} cannot be set: {choice.url} is on another host, and limits are set on this one; "
            "run the study there."
        )


def carried(choice: EvaluatorChoice, baseline: Deployment, knob: Knob) -> bool:
    """Whether each value of a knob is another launch of an external engine; limits are set beside it.

    A value that no command can carry is one too: its trial says so.
    """
    if ".power." in knob.path:
        return True
    command, seen = DIALECTS[choice.kind].command, set[object]()
    for value in knob.values:
        try:
            whole = Deployment.model_validate(with_path(baseline.model_dump(), knob.path, value))
            seen.add(command(whole).argv)
        except (ConfigError, ValidationError):
            seen.add(value)
    return len(seen) == len(knob.values)


def powered(study: StudyRecord) -> PowerController:
    """Sets and restores the limits of every device that a configuration of an external engine's study may use.

    Raises ConfigError where limits are asked for and the devices cannot be told apart.
    """
    choice, spec = chosen(study.machine), study.spec
    if elsewhere(choice):
        return no_power()
    try:
        return power_controller(identities(choice, largest(spec), MonotonicClock()))
    except SensorUnavailableError as error:
        if any(".power." in knob.path for knob in spec.space.knobs) or spec.baseline.decode.power != PowerConfig():
            raise ConfigError(f"Power limits cannot be set: {error}") from error
        return no_power()


def _endpoint(choice: EvaluatorChoice) -> Endpoint:
    if choice.url is None:
        raise ConfigError("The endpoint evaluator needs a url.")
    url, key = Endpoint.base(choice.url), os.environ.get("ENERGYOPT_ENDPOINT_KEY")
    return Endpoint(url, choice.served_model or first_model(url, key), key, modern=False)


def _meter_of(choice: EvaluatorChoice, kind: str, clock: Clock) -> MeterOf:
    return lambda deployment: _sampling(choice, deployment, kind, clock)


@contextmanager
def _sampling(choice: EvaluatorChoice, deployment: Deployment, kind: str, clock: Clock) -> Iterator[Meter]:
    """The sensors of the deployment's devices, on a page or of this host, sampled while the block lasts."""
    meter = _page(choice, deployment, clock) if choice.energy_url else _local(choice, deployment, kind, clock)
    meter.start()
    try:
        yield meter
    finally:
        meter.stop()


def _page(choice: EvaluatorChoice, deployment: Deployment, clock: Clock) -> PageMeter:
    """A launched engine has as many GPUs as ranks: more of them on the page are not its own, and then none counts."""
    url, ranks = choice.energy_url or "", deployment.devices
    launched = choice.kind != "endpoint" and deployment.decode.engine.device != "cpu"
    named = choice.devices[:ranks] if launched else choice.devices
    gpus = not named or not named[0].startswith("cpu")
    return PageMeter(url, clock, devices=named, expected=ranks if launched and gpus else None, boundary=True)


def _local(choice: EvaluatorChoice, deployment: Deployment, kind: str, clock: Clock) -> HostMeter:
    found = find_used(choice, deployment, kind, clock)
    return HostMeter(found.sources, clock, found.reasons, statuses=found.statuses)
