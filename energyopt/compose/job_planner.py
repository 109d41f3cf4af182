"""Plans studies and deployments for the service, within what it was allowed to touch, and words their outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from energyopt import __version__
from energyopt.core.config import Deployment, EngineConfig, PoolConfig
from energyopt.core.errors import ConfigError, NotFoundError
from energyopt.core.results import RunResult
from energyopt.core.slo import Slo
from energyopt.core.study import StudyRecord, StudySpec, TrialOutcome, TrialRecord, Value
from energyopt.core.units import Seconds
from tuner.attached import check_result
from tuner.export.command import serve_command
from tuner.export.forms import render
from tuner.export.manifest import manifest_json
from tuner.nearest import explain_infeasible
from tuner.objective import Objective
from tuner.space import SearchSpace

from .body_policy import BodyPolicy
from .machine import describe_machine
from .plan import PlanRequest, make_plans
from .plan_files import plan_document
from .study import LAUNCH_SECONDS, PlannedStudy, TuneRequest, plan_study


class HostPlanner:
    """A ``StudyPlanner`` for this host; ``policy`` says what a body may ask for."""

    form: type[BaseModel] = TuneRequest

    def __init__(self, policy: BodyPolicy) -> None:
        self._policy = policy

    def plan(self, request: BaseModel) -> PlannedStudy:
        assert isinstance(request, TuneRequest)
        if request.meter.startswith("replay:"):
            raise ConfigError("meter = 'replay:' is not allowed here: it would read a file of this host.")
        self._policy.check_footprint(request.footprint)
        engine = EngineConfig(model=request.model, kv=request.kv)
        self._policy.check_deployment(Deployment(decode=PoolConfig(engine=engine)))
        return plan_study(request)

    def plan_spec(self, spec: StudySpec) -> PlannedStudy:
        self._policy.check_deployment(spec.baseline)
        self._policy.check_space(spec.space, spec.baseline)
        for slo in spec.slos:
            Slo.parse(slo)
        points = SearchSpace(spec.space, spec.baseline).plan
        runs = min(spec.budget.trials, len(points.points)) + 2 * spec.budget.verify_pairs
        everything = runs * (LAUNCH_SECONDS + spec.plan.warmup + spec.plan.window)
        expected = Seconds(min(everything, spec.budget.seconds or everything))
        return PlannedStudy(spec, describe_machine(), len(points.points), points.removed, expected, ())

    def deployment(self, spec: StudySpec, params: Mapping[str, Value]) -> Deployment:
        return SearchSpace(spec.space, spec.baseline).apply(params)


class PlanMaker:
    """``DeploymentPlans`` by the simulator."""

    form: type[BaseModel] = PlanRequest

    def make(self, request: BaseModel) -> dict[str, object]:
        assert isinstance(request, PlanRequest)
        if request.constants is not None or any(one.endswith(".json") for one in (request.model, *request.gpus)):
            raise ConfigError("A plan takes models, GPUs and constants that come along, not files of the host.")
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

    def judge(self, spec: StudySpec, result: RunResult) -> tuple[TrialOutcome, Mapping[str, Value]]:
        check_result(spec, result)
        objective = Objective(spec.maximize, spec.slos)
        return objective.outcome(result), {"value": objective.value(result), "joules": result.joules}
