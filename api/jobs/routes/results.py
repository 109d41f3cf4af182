"""What a study found: its trials, the Pareto front, the recommendation and how to run it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi import Path as PathParameter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from energyopt.core.config import Deployment
from energyopt.core.errors import NoFeasibleError
from energyopt.core.jobs import TrialFilter, TrialOrder
from energyopt.core.study import Origin, StudyRecord, StudyState, TrialOutcome, TrialRecord, TrialState, Value

from ..access import note, study_of
from ..bodies import TrialBody, checked, read_object
from ..documents import answer, make_cursor, read_cursor
from ..door import Caller, Reader, ServicesDep, Tuner
from ..openapi import ENQUEUE
from ..problems import ConflictError
from ..services import JobServices
from ..views import FrontView, RecommendationView, TrialPage

router = APIRouter()
ATTACHED: dict[int | str, dict[str, Any]] = {201: {"model": TrialRecord, "description": "Attached."}}
Number = Annotated[int, PathParameter(ge=0, lt=2**31)]


class NothingFeasibleError(NoFeasibleError):
    """No trial keeps the SLOs; ``extra`` holds the nearest."""

    def __init__(self, message: str, extra: dict[str, object]) -> None:
        super().__init__(message)
        self.extra = extra


@router.get("/v1/studies/{study_id}/trials", response_model=TrialPage)
def list_trials(
    study_id: str,
    services: ServicesDep,
    caller: Reader,
    state: Annotated[list[TrialState] | None, Query()] = None,
    outcome: Annotated[list[TrialOutcome] | None, Query()] = None,
    sort: Annotated[TrialOrder, Query(description="By a figure the best come first, those without it not.")] = (
        TrialOrder.NUMBER
    ),
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    cursor: Annotated[str | None, Query(max_length=300)] = None,
) -> Response:
    """Trials with their figures."""
    study = study_of(services, caller, study_id)
    chosen = TrialFilter(states=tuple(state or ()), outcomes=tuple(outcome or ()), order=sort)
    kind = f"trials:{study.id}:{sort.value}"
    after = None
    if cursor is not None:
        value, number = read_cursor(kind, cursor, 2)
        after = (value, int(number or 0))
    lines = services.pages.trials(study.id, chosen, limit=limit + 1, after=after)
    more = None
    if len(lines) > limit:
        last = lines[limit - 1]
        figure = None if sort is TrialOrder.NUMBER else getattr(last, sort.value)
        more = make_cursor(kind, [figure, last.number])
    return answer(TrialPage(items=tuple(lines[:limit]), next=more))


@router.post(
    "/v1/studies/{study_id}/trials",
    status_code=202,
    response_model=TrialRecord,
    responses=ATTACHED,
    openapi_extra=ENQUEUE,
)
async def enqueue_trial(study_id: str, request: Request, services: ServicesDep, caller: Tuner) -> Response:
    """Have a configuration measured next, before what the search would ask for; or attach what was measured elsewhere.

    An attached result is believed as far as it does not contradict itself, and learned from; a winner is measured here
    all the same before it is recommended.
    """
    body = checked(await read_object(request), TrialBody)
    return await run_in_threadpool(_enqueue, services, caller, study_id, body)


@router.get("/v1/studies/{study_id}/trials/{number}", response_model=TrialRecord)
def get_trial(study_id: str, number: Number, services: ServicesDep, caller: Reader) -> Response:
    """One trial with every reading and verdict."""
    return answer(services.pages.trial(study_of(services, caller, study_id).id, number))


@router.get("/v1/studies/{study_id}/pareto", response_model=FrontView)
def pareto(
    study_id: str,
    services: ServicesDep,
    caller: Reader,
    x: Annotated[
        Literal["tokens_per_joule", "output_rate"] | None, Query(description="Default: the objective.")
    ] = None,
    y: Annotated[Literal["tpot_p90", "ttft_p90", "itl_p99"], Query()] = "tpot_p90",
) -> Response:
    """The feasible trials that no other beats in both, by growing latency."""
    study = study_of(services, caller, study_id)
    benefit = x or study.spec.maximize
    return answer(FrontView(x=benefit, y=y, items=tuple(services.pages.front(study.id, benefit, y))))


@router.get("/v1/studies/{study_id}/recommendation", response_model=RecommendationView)
def recommendation(study_id: str, services: ServicesDep, caller: Reader) -> Response:
    """What to run. 409 while there is none; with the nearest misses where nothing keeps the SLOs."""
    study = study_of(services, caller, study_id)
    found = _require(services, study).recommendation
    assert found is not None
    record = services.pages.trial(study.id, found.trial)
    first = TrialFilter()
    chosen = services.pages.trials(study.id, first, limit=1, after=(None, found.trial - 1))
    baseline = services.pages.trials(study.id, first, limit=1)
    view = RecommendationView(
        recommendation=found,
        params=record.params,
        deployment=record.deployment.model_dump(mode="json"),
        trial=chosen[0],
        baseline=baseline[0] if baseline[0].origin == Origin.BASELINE.value else None,
    )
    return answer(view)


ManifestForm = Literal["json", "energyopt", "vllm", "sglang", "compose", "systemd", "kubernetes", "dynamo", "llm-d"]


@router.get("/v1/studies/{study_id}/manifest")
def manifest(
    study_id: str,
    services: ServicesDep,
    caller: Reader,
    format: Annotated[ManifestForm, Query(description="json: with the evidence.")] = "json",
) -> Response:
    """The recommendation as something to deploy: evidence, a command, a unit, or the manifest of an orchestrator."""
    study = _require(services, study_of(services, caller, study_id))
    chosen = study.recommendation.trial if study.recommendation else None
    text, media_type = services.outcomes.manifest(study, services.pages.evidence(study.id, chosen), format)
    return Response(text, media_type=media_type, headers={"cache-control": "no-store"})


def _require(services: JobServices, study: StudyRecord) -> StudyRecord:
    """The study, if it has a recommendation. Raises NothingFeasibleError, ConflictError."""
    if study.recommendation is not None:
        return study
    if study.state is StudyState.NO_FEASIBLE:
        near = services.pages.nearest(study.id)
        extra: dict[str, object] = {"nearest": [_missed(trial) for trial in near]}
        raise NothingFeasibleError(services.outcomes.nearest(services.studies.trials(study.id)), extra)
    why = f" {study.error}" if study.error else ""
    raise ConflictError(f"Study {study.id} is {study.state}: it has no recommendation.{why}")


def _missed(trial: TrialRecord) -> dict[str, object]:
    verdicts = trial.result.verdicts if trial.result else ()
    # A violation without end (a failed request) has no number in JSON; unknown is null all the same.
    missed = {v.slo: v.violation if v.violation is not None and v.violation < 1e300 else None for v in verdicts}
    return {"trial": trial.number, "params": dict(trial.params), "violations": missed}


def _enqueue(services: JobServices, caller: Caller, study_id: str, body: TrialBody) -> Response:
    study = study_of(services, caller, study_id)
    if study.state.terminal or study.state in (StudyState.VERIFYING, StudyState.CANCELLING):
        raise ConflictError(f"Study {study.id} is {study.state}: its search is over.")
    deployment = services.planner.deployment(study.spec, body.params)
    if not services.pages.counts(study.id):
        raise ConflictError(f"Study {study.id} has not begun: its first trial is the baseline.")
    if body.result is not None or body.outcome is not None:
        return _attach(services, caller, study, deployment, body)
    trial = services.studies.add_trial(study.id, body.params, deployment, Origin.USER)
    note(services, caller, "enqueue", f"study:{study.id}", f"trial {trial.number}")
    return answer(trial, 202, {"location": f"/v1/studies/{study.id}/trials/{trial.number}"})


def _attach(
    services: JobServices, caller: Caller, study: StudyRecord, deployment: Deployment, body: TrialBody
) -> Response:
    outcome, summary = TrialOutcome(body.outcome or TrialOutcome.FAILED), dict[str, Value]()
    if body.result is not None:
        outcome, told = services.outcomes.judge(study.spec, body.result)
        summary = dict(told)
    trial = services.attached.attach(
        study.id, body.params, deployment, outcome, result=body.result, error=body.error, summary=summary
    )
    source = trial.result.energy.label if trial.result and trial.result.energy else "no joules"
    note(services, caller, "attach", f"study:{study.id}", f"trial {trial.number}: {outcome.value}, {source}")
    return answer(trial, 201, {"location": f"/v1/studies/{study.id}/trials/{trial.number}"})
