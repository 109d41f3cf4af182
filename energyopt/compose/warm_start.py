"""Gives a new study its first trials by simulation, and compares the predictions with what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from energyopt.core.config import Deployment
from energyopt.core.errors import ConfigError
from energyopt.core.results import RunResult
from energyopt.core.slo import Slo
from energyopt.core.study import Origin, StudySpec, TrialRecord, Value
from tuner.evaluators.simulated import SimulatedEvaluator
from tuner.simulator.observations import metrics_of
from tuner.simulator.prior import candidates
from tuner.space import SearchSpace

from .results import Session

EVENT = "predicted"
"""Kind of the event that records what was predicted of a trial, before it ran."""
MOST = 8
METRICS = ("tok_s", "ttft_p90", "tpot", "watts")


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine as the simulator knows it: a GPU name or file, a model name or file, and calibrated constants."""

    hardware: str
    model: str
    constants: str | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One trial: figures by metric, predicted before it ran and measured."""

    trial: TrialRecord
    predicted: Mapping[str, float]
    measured: Mapping[str, float]

    def error(self, metric: str) -> float | None:
        """Predicted over measured less one; None where either is unknown."""
        predicted, measured = self.predicted.get(metric), self.measured.get(metric)
        return predicted / measured - 1 if predicted and measured else None


def warm_start(session: Session, study_id: str, machine: Machine) -> int:
    """Queue the baseline and up to 8 simulated candidates (at most half of the trials); returns how many candidates.

    Call it on a study without trials. Raises ConfigError otherwise, and for unknown hardware or models.
    """
    study = session.store.study(study_id)
    if session.store.trials(study.id):
        raise ConfigError(f"The study {study.id} has trials already: a prior is for a study that has not begun.")
    spec = study.spec
    space = SearchSpace(spec.space, spec.baseline)
    count = min(MOST, max(0, spec.budget.trials // 2))
    found = candidates(space, partial(_simulate, machine, spec), partial(_worth, spec), count=count, seed=spec.seed)
    session.store.add_trial(study.id, space.baseline_params, spec.baseline, Origin.BASELINE)
    for candidate in found:
        trial = session.store.add_trial(study.id, candidate.params, candidate.deployment, Origin.SEARCH)
        data: dict[str, Value] = {"trial": trial.number, "source": "simulated", **metrics_of(candidate.predicted)}
        session.store.add_event(study.id, EVENT, data)
    return len(found)


def _simulate(machine: Machine, spec: StudySpec, deployment: Deployment) -> RunResult:
    evaluator = SimulatedEvaluator(machine.hardware, model=machine.model, constants=machine.constants)
    slos = [Slo.parse(text) for text in spec.slos]
    return evaluator.run(deployment, spec.workload, spec.plan, slos, lambda progress: None)


def _worth(spec: StudySpec, result: RunResult) -> float | None:
    return result.tokens_per_joule if spec.maximize == "tokens_per_joule" else result.output_rate


def compare(session: Session, study_id: str) -> list[Comparison]:
    """Predicted against measured, for every trial of a study that was predicted and has been measured."""
    study = session.store.study(study_id)
    trials = {trial.number: trial for trial in session.store.trials(study.id)}
    found = []
    after = 0
    while page := session.store.events(study.id, after=after, limit=500):
        after = page[-1].id
        for event in page:
            trial = trials.get(int(event.data.get("trial") or -1)) if event.kind == EVENT else None
            if trial is not None and trial.result is not None:
                predicted = {name: float(value) for name, value in event.data.items() if name in METRICS and value}
                found.append(Comparison(trial, predicted, metrics_of(trial.result)))
    return found
