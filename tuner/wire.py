"""What a trial's process and its parent say to each other: one job in, JSON lines out.

The parent writes a ``TrialJob`` as one line and keeps the pipe open; the child answers with ``Line`` objects, one a
line, the last of which has ``result`` or ``error``. Whatever else appears on the child's output is not ours.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationError, model_validator

from energyopt.core.config import Config, Deployment
from energyopt.core.errors import (
    ConfigError,
    CrashError,
    EnergyoptError,
    EngineDeadError,
    LaunchError,
    ModelError,
    OutOfMemoryError,
    RequestError,
    TrialError,
    TrialTimeoutError,
)
from energyopt.core.results import Result, RunResult
from energyopt.core.study import MeasurePlan
from energyopt.core.workload import Workload

MAX_JOB_BYTES = 64 * 2**20
MAX_LINE_BYTES = 2**20
"""Longer lines are not ours: a result is a few kilobytes."""

FailureKind = Literal["oom", "launch_failed", "crashed", "timeout", "failed"]

_ERRORS: dict[FailureKind, type[TrialError]] = {
    "oom": OutOfMemoryError,
    "launch_failed": LaunchError,
    "crashed": CrashError,
    "timeout": TrialTimeoutError,
    "failed": TrialError,
}


class TrialJob(Config):
    """Everything one trial needs. ``slos`` are in their text form; ``meter`` names the kind of power meter."""

    deployment: Deployment
    workload: Workload
    plan: MeasurePlan
    slos: tuple[str, ...] = ()
    meter: str = "auto"


class Stage(Result):
    """``Progress`` on the wire."""

    stage: str
    fraction: float = Field(ge=0, le=1)


class Failure(Result):
    """A TrialError on the wire."""

    kind: FailureKind
    message: str = Field(max_length=10_000)

    @classmethod
    def of(cls, error: BaseException) -> Failure | None:
        """What ``error`` says about the configuration; None if it is a fault of the program, not of the trial."""
        kind, message = _kind(error), str(error) or type(error).__name__
        return None if kind is None else cls(kind=kind, message=message[:10_000])

    def error(self) -> TrialError:
        """The exception that this line stands for."""
        return _ERRORS[self.kind](self.message)


class Line(Result):
    """One line of the child: exactly one of the three is set."""

    progress: Stage | None = None
    result: RunResult | None = None
    error: Failure | None = None

    @model_validator(mode="after")
    def _is_one_thing(self) -> Line:
        if sum(part is not None for part in (self.progress, self.result, self.error)) != 1:
            raise ValueError("a line has exactly one of progress, result and error")
        return self

    def encode(self) -> bytes:
        return self.model_dump_json().encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Line | None:
        """The line, or None if it is not one of ours."""
        try:
            return cls.model_validate_json(line)
        except ValidationError:
            return None


def _kind(error: BaseException) -> FailureKind | None:
    """Memory first: an engine that died of it reports its death, with the shortage as the cause."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (OutOfMemoryError, MemoryError)):
            return "oom"
        cause = cause.__cause__
    if isinstance(error, TrialError):
        return next((kind for kind, known in _ERRORS.items() if type(error) is known), "failed")
    if isinstance(error, EngineDeadError):
        return "crashed"
    if isinstance(error, (ConfigError, ModelError, RequestError)):
        return "launch_failed"
    return "failed" if isinstance(error, EnergyoptError) else None
