"""Builds the evaluator that a study asks for, with the meter and the memory gauge of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.config import PowerConfig
from energyopt.core.errors import ConfigError
from energyopt.core.study import StudyRecord
from energyopt.core.units import bytes_from_kibibytes
from tuner.evaluators.chat_http import MeterOf
from tuner.evaluators.choice import EvaluatorChoice
from tuner.evaluators.embedded import EmbeddedEvaluator
from tuner.evaluators.endpoint import EndpointEvaluator, check_knobs
from tuner.evaluators.launched import DIALECTS, Launch, LaunchedEvaluator
from tuner.evaluators.recorded import RecordedEvaluator
from tuner.evaluators.simulated import SimulatedEvaluator
from tuner.ports import Evaluator, Meter, PowerController
from tuner.replay.http import Endpoint
from tuner.replay.page import PageMeter

from .host_meter import host_meter
from .results import Session, study_folder
from .served import first_model

EVALUATOR_KEY = "evaluator"
"""Where a study keeps which evaluator it runs on, among the facts of its machine; absent is the embedded engine."""


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


def chosen(machine: Mapping[str, str]) -> EvaluatorChoice:
    """What a study's facts say about its evaluator."""
    return EvaluatorChoice.model_validate_json(machine.get(EVALUATOR_KEY, "{}"))


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
        return RecordedEvaluator(session.store.trials(session.store.study(choice.study or "").id))
    clock = MonotonicClock()
    meter_of = _meter_of(choice, kind, clock)
    if choice.kind == "endpoint":
        check_knobs(study.spec.space)
        return EndpointEvaluator(_endpoint(choice), meter_of, clock)
    launch = Launch(
        program=choice.command,
        arguments=choice.arguments,
        environment=dict(word.split("=", 1) for word in choice.environment),
        free_memory=available_memory,
        log_dir=logs,
    )
    return LaunchedEvaluator(DIALECTS[choice.kind], launch, meter_of, clock)


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Memory of this host that a new process could have; None where it does not tell."""
    try:
        lines = meminfo.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    words = next((line.split() for line in lines if line.startswith("MemAvailable:")), [])
    return bytes_from_kibibytes(int(words[1])) if len(words) > 1 and words[1].isdigit() else None


def _endpoint(choice: EvaluatorChoice) -> Endpoint:
    if choice.url is None:
        raise ConfigError("The endpoint evaluator needs a url.")
    url, key = Endpoint.base(choice.url), os.environ.get("ENERGYOPT_ENDPOINT_KEY")
    return Endpoint(url, choice.served_model or first_model(url, key), key, modern=False)


def _meter_of(choice: EvaluatorChoice, kind: str, clock: Clock) -> MeterOf:
    return lambda: _sampling(choice.energy_url, kind, clock)


@contextmanager
def _sampling(url: str | None, kind: str, clock: Clock) -> Iterator[Meter]:
    """The page or this host's sensors, sampled while the block lasts."""
    meter = PageMeter(url, clock) if url is not None else host_meter(kind, clock)
    meter.start()
    try:
        yield meter
    finally:
        meter.stop()
