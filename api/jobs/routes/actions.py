"""``:cancel``, ``:pause`` and ``:resume`` of a study. Workers heed them between trials; asking twice is asking once."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from energyopt.core.study import StudyState

from ..access import note, study_of
from ..documents import answer
from ..door import Caller, ServicesDep, Tuner
from ..problems import ConflictError
from ..services import JobServices
from ..views import StudyView, study_view

router = APIRouter()

WORKED_ON = (StudyState.PLANNING, StudyState.RUNNING, StudyState.VERIFYING)
_Steps = tuple[tuple[tuple[StudyState, ...], StudyState], ...]
_CANCEL: _Steps = (
    ((StudyState.QUEUED, StudyState.PAUSED, StudyState.FAILED), StudyState.CANCELLED),
    ((*WORKED_ON, StudyState.PAUSING), StudyState.CANCELLING),
)
_PAUSE: _Steps = (((StudyState.QUEUED,), StudyState.PAUSED), (WORKED_ON, StudyState.PAUSING))
_RESUME: _Steps = (((StudyState.PAUSED, StudyState.FAILED), StudyState.QUEUED),)


@router.post("/v1/studies/{study_id}:cancel", status_code=202, response_model=StudyView)
def cancel(study_id: str, services: ServicesDep, caller: Tuner) -> Response:
    """End a study after the trial that runs. What was measured stays, limits of power are put back by the worker."""
    done = (StudyState.CANCELLING, StudyState.CANCELLED)
    return _ask(services, caller, study_id, "cancel", _CANCEL, done)


@router.post("/v1/studies/{study_id}:pause", status_code=202, response_model=StudyView)
def pause(study_id: str, services: ServicesDep, caller: Tuner) -> Response:
    """Stop a study after the trial that runs, to be resumed."""
    return _ask(services, caller, study_id, "pause", _PAUSE, (StudyState.PAUSING, StudyState.PAUSED))


@router.post("/v1/studies/{study_id}:resume", status_code=202, response_model=StudyView)
def resume(study_id: str, services: ServicesDep, caller: Tuner) -> Response:
    """Let a paused or failed study wait for a worker again; finished trials are not repeated."""
    return _ask(services, caller, study_id, "resume", _RESUME, (StudyState.QUEUED, *WORKED_ON))


def _ask(
    services: JobServices, caller: Caller, study_id: str, word: str, steps: _Steps, done: tuple[StudyState, ...]
) -> Response:
    """The first step whose states the study is in. Raises ConflictError from a state that knows no such step."""
    study = study_of(services, caller, study_id)
    moved = any(services.studies.change_state(study.id, to, when=found) for found, to in steps)
    study = services.studies.study(study.id)
    if moved:
        note(services, caller, word, f"study:{study.id}", f"now {study.state}")
    elif study.state not in done:
        raise ConflictError(f"Study {study.id} is {study.state}: it cannot be asked to {word}.")
    view = study_view(study, services.jobs.job(study.id), services.pages.counts(study.id))
    return answer(view, 202, {"retry-after": "2"})
