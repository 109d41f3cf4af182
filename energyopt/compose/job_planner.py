"""Plans studies and deployments for the service, within what it was allowed to touch, and words their outcomes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel

from energyopt import __version__
from energyopt.core.config import Deployment, EngineConfig
from energyopt.core.errors import ConfigError, NotFoundError
from energyopt.core.slo import Slo
from energyopt.core.study import StudyRecord, StudySpec, TrialRecord, Value
from energyopt.core.units import Seconds
from tuner.export.command import serve_command
from tuner.export.forms import render
from tuner.export.manifest import manifest_json
from tuner.nearest import explain_infeasible
from tuner.space import SearchSpace

from .machine import describe_machine
from .plan import PlanRequest, make_plans
from .plan_files import plan_document
from .study import LAUNCH_SECONDS, PlannedStudy, TuneRequest, plan_study

_FORBIDDEN_KNOBS = frozenset(("model", "tiers", "path"))
"""Parts of a knob's path by which it could lead to files."""


class HostPlanner:
    """A ``StudyPlanner`` for this host.

    Models are aliases or lie below one of ``roots``; no body names other files.
    """

    form: type[BaseModel] = TuneRequest

    def __init__(self, roots: Sequence[Path] = ()) -> None:
        self._roots = [Path(os.path.realpath(root)) for root in roots]

    def plan(self, request: BaseModel) -> PlannedStudy:
        assert isinstance(request, TuneRequest)
        if request.meter.startswith("replay:"):
            raise ConfigError("meter = 'replay:' is not allowed here: it would read a file of this host.")
        self._check_engine(EngineConfig(model=request.model, kv=request.kv))
        return plan_study(request)

    def plan_spec(self, spec: StudySpec) -> PlannedStudy:
        for pool in (spec.baseline.decode, spec.baseline.prefill):
            if pool is not None:
                self._check_engine(pool.engine)
        for knob in spec.space.knobs:
            if _FORBIDDEN_KNOBS & set(knob.path.split(".")):
                raise ConfigError(f"The knob {knob.path!r} is not allowed here: it leads to files of this host.")
        for slo in spec.slos:
            Slo.parse(slo)
        points = SearchSpace(spec.space, spec.baseline).plan
        runs = min(spec.budget.trials, len(points.points)) + 2 * spec.budget.verify_pairs
        everything = runs * (LAUNCH_SECONDS + spec.plan.warmup + spec.plan.window)
        expected = Seconds(min(everything, spec.budget.seconds or everything))
        return PlannedStudy(spec, describe_machine(), len(points.points), points.removed, expected, ())

    def deployment(self, spec: StudySpec, params: Mapping[str, Value]) -> Deployment:
        return SearchSpace(spec.space, spec.baseline).apply(params)

    def _check_engine(self, engine: EngineConfig) -> None:
        if any(tier.path is not None for tier in engine.kv.tiers):
            raise ConfigError("A tier with a path is not allowed here: the host of the worker chooses its folders.")
        if os.sep not in engine.model and not Path(engine.model).exists():
            return  # an alias, which the catalogue of models resolves
        real = Path(os.path.realpath(engine.model))
        if not any(real.is_relative_to(root) for root in self._roots):
            where = ", ".join(map(str, self._roots)) or "none; start the service with --model-root FOLDER"
            raise ConfigError(f"model = {engine.model[:80]!r} is not in a folder that this service may read ({where}).")


class PlanMaker:
    """``DeploymentPlans`` by the simulator."""

    form: type[BaseModel] = PlanRequest

    def make(self, request: BaseModel) -> dict[str, object]:
        assert isinstance(request, PlanRequest)
        if request.constants is not None or os.sep in request.model:
            raise ConfigError("A plan takes models and constants that come with energyopt, not files of this host.")
        return plan_document(request, make_plans(request))


class StudyOutcomes:
    """``Outcomes`` from records alone."""

    def manifest(self, study: StudyRecord, trials: Sequence[TrialRecord], form: str) -> tuple[str, str]:
        if form == "json":
            return manifest_json(study, trials, version=__version__), "application/json"
        chosen = study.recommendation.trial if study.recommendation else None
        winner = next((trial for trial in trials if trial.number == chosen), None)
        if winner is None:
            raise NotFoundError(f"Study {study.id} has no recommendation.")
        if form == "energyopt":
            return f"{serve_command(winner.deployment, tuned=study.spec.space).shell}\n", "text/plain"
        return render(form, winner.deployment)

    def nearest(self, trials: Sequence[TrialRecord]) -> str:
        return explain_infeasible(trials)
