"""Bodies of requests: from bytes to a checked model, with every complaint at its place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError, model_validator
from pydantic_core import from_json
from starlette.requests import Request

from energyopt.core.errors import ConfigError, UsageError
from energyopt.core.leases import WorkerFacts
from energyopt.core.results import RunResult
from energyopt.core.study import Budget, TrialOutcome, Value
from tuner.source import Failure

from .problems import InvalidBodyError

LabelName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9._/-]{0,61}[a-z0-9])?$")]
LabelValue = Annotated[str, StringConstraints(max_length=120)]
LabelMap = Annotated[dict[LabelName, LabelValue], Field(max_length=32)]
_LABELS: TypeAdapter[dict[str, str]] = TypeAdapter(LabelMap)
_JSON = re.compile(r"application/([\w.+-]+\+)?json", re.IGNORECASE)

M = TypeVar("M", bound=BaseModel)


class UnsupportedMediaError(UsageError):
    """A body that is not said to be JSON; a form of a foreign page could send anything else."""

    http_status = 415


class StrictBody(BaseModel):
    """Base of bodies that belong to the service alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class StudyPatch(StrictBody):
    """What may be changed of a study at any time; absent fields stay."""

    budget: Budget | None = None
    labels: LabelMap | None = None


Failed = Literal["oom", "launch_failed", "crashed", "timeout", "failed"]


class TrialBody(StrictBody):
    """A point of the study's space: a value for every knob, by path. It is to be measured next, or was elsewhere.

    What was measured comes as ``result``, with every joule's source and error; a configuration that failed as
    ``outcome`` with its ``error``.
    """

    params: dict[str, Value] = Field(max_length=64)
    result: RunResult | None = None
    outcome: Failed | None = None
    error: str | None = Field(None, min_length=1, max_length=10_000)

    @model_validator(mode="after")
    def _says_one_thing(self) -> TrialBody:
        if self.result is not None and (self.outcome or self.error):
            raise ValueError("a trial has a result, or outcome and error, not both")
        if (self.outcome is None) != (self.error is None):
            raise ValueError("a failed configuration needs outcome and error")
        return self


class KeyBody(StrictBody):
    """A key to be made."""

    name: str = Field(min_length=1, max_length=100)
    scopes: list[str] = Field(min_length=1, max_length=5)
    tenant: str | None = None


class CapBody(StrictBody):
    """Limits for some devices (without any: all of the host) for ``ttl`` seconds; what was found comes back then."""

    devices: list[str] = Field(default_factory=list, max_length=64)
    cap: float | None = Field(None, gt=0, le=1e5, description="Watts per device.")
    sm_clock: float | None = Field(None, gt=0, le=1e11, description="Hertz.")
    ttl: float = Field(gt=0, le=86_400, description="Seconds.")


class LeaseBody(StrictBody):
    """Who asks for a trial, and how long it is ready to wait for one."""

    worker: WorkerFacts
    wait: float = Field(0.0, ge=0, le=30, description="Seconds.")


class BeatBody(StrictBody):
    """Where a run stands: launching, warming, measuring or done, and how much of that is over."""

    stage: str = Field("", max_length=40)
    fraction: float = Field(0.0, ge=0, le=1)


class CompleteBody(StrictBody):
    """What was measured."""

    result: RunResult


class FailBody(StrictBody):
    """How a configuration failed."""

    outcome: Failed
    error: str = Field(min_length=1, max_length=10_000)

    def failure(self) -> Failure:
        return Failure(outcome=TrialOutcome(self.outcome), error=self.error)


class FaultBody(StrictBody):
    """What failed around a configuration."""

    reason: str = Field(min_length=1, max_length=10_000)


async def read_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object. Raises UnsupportedMediaError, InvalidBodyError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if not _JSON.fullmatch(kind):
        raise UnsupportedMediaError(f"The body must be application/json, not {kind[:60] or 'of no type'!r}.")
    try:
        body = from_json(await request.body(), allow_inf_nan=False)
    except ValueError as error:
        raise InvalidBodyError([{"pointer": "#", "detail": f"the body is not valid JSON: {error}"}]) from error
    if not isinstance(body, dict):
        raise InvalidBodyError([{"pointer": "#", "detail": "the body must be a JSON object"}])
    return body


def checked(body: Mapping[str, Any], model: type[M]) -> M:
    """``body`` as ``model``. Raises InvalidBodyError with every complaint."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise InvalidBodyError.of(error) from error
    except ConfigError as error:  # a validator of ours
        raise InvalidBodyError([{"pointer": "#", "detail": error.message}]) from error


def take_labels(body: dict[str, Any]) -> dict[str, str]:
    """Remove ``labels`` from ``body`` and check them. Raises InvalidBodyError."""
    try:
        return _LABELS.validate_python(body.pop("labels", {}))
    except ValidationError as error:
        complaints = InvalidBodyError.of(error).complaints
        moved = [{**one, "pointer": "#/labels" + one["pointer"].removeprefix("#")} for one in complaints]
        raise InvalidBodyError(moved) from error
