"""Calibrates the simulator: from measured runs to a file of constants that says where it comes from."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from energyopt.core.config import Deployment
from energyopt.core.errors import ConfigError
from energyopt.core.results import RunResult
from energyopt.core.study import MeasurePlan, StudyRecord, TrialState
from energyopt.core.workload import Workload
from tuner.evaluators.simulated import SimulatedEvaluator
from tuner.simulator.calibration import Calibration, Observation, calibrate
from tuner.simulator.constants import Constants, load_constants
from tuner.simulator.hardware import load_gpu
from tuner.simulator.models import load_model_spec
from tuner.simulator.observations import from_csv, from_trials

from .results import Session


@dataclass(frozen=True, slots=True)
class CalibrationRequest:
    """What to fit: a GPU (name or file), the model of the study's runs (name or file), whether experts are in play,
    and constants to start from (None: those of the GPU or of its nearest relative).
    """

    gpu: str
    model: str | None = None
    moe: bool = False
    start: str | None = None


def calibrate_csv(request: CalibrationRequest, path: Path) -> Calibration:
    """Fit on the rows of a CSV file. Raises ConfigError, NotFoundError."""
    gpu = load_gpu(request.gpu)
    observations = from_csv(path, gpu)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    return _fit(request, observations, f"{path.name} (sha256 {digest})", moe=request.moe)


def calibrate_study(request: CalibrationRequest, session: Session, study_id: str) -> Calibration:
    """Fit on the finished trials of a study, each replayed under its own load. Raises ConfigError, NotFoundError."""
    study: StudyRecord = session.store.study(study_id)
    if request.model is None:
        raise ConfigError("The study's model needs a description: give --model with a name, a file or a config.json.")
    trials = [trial for trial in session.store.trials(study.id) if trial.state is TrialState.DONE]
    simulate = partial(_simulate, request.gpu, request.model)
    moe = load_model_spec(request.model).moe
    return _fit(request, from_trials(study.spec, trials, simulate), f"study {study.id}", moe=moe)


def _simulate(
    gpu: str, model: str, deployment: Deployment, load: Workload, plan: MeasurePlan, constants: Constants
) -> RunResult:
    evaluator = SimulatedEvaluator(gpu, model=model, constants=constants)
    return evaluator.run(deployment, load, plan, (), lambda progress: None)


def _fit(request: CalibrationRequest, observations: list[Observation], source: str, *, moe: bool) -> Calibration:
    start = load_constants(load_gpu(request.gpu), moe=moe, path=request.start)
    day = datetime.now(UTC).date().isoformat()
    return calibrate(observations, start, provenance=f"calibrated on {len(observations)} runs of {source} on {day}")


def write_constants(calibration: Calibration, out: Path) -> None:
    """Store constants as a file for ``plan --constants``. Raises ConfigError where it cannot be written."""
    text = json.dumps(calibration.constants.model_dump(mode="json"), indent=1) + "\n"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"The file {out} cannot be written: {error.strerror}.") from error
