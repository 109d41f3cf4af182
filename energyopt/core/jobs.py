"""Studies as a service keeps them: who submitted them, under which labels, and lists of them a page at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum

from pydantic import Field

from .results import Result
from .study import Recommendation, StudyState, TrialState, Value

Labels = Mapping[str, str]


class Scope(StrEnum):
    """What a key may do. ``TUNE`` and ``CONTROL`` include ``READ``, ``ADMIN`` includes everything."""

    READ = "read"
    INFER = "infer"
    TUNE = "tune"
    CONTROL = "control"
    ADMIN = "admin"

    @property
    def included(self) -> frozenset[Scope]:
        if self is Scope.ADMIN:
            return frozenset(Scope)
        return frozenset({self, Scope.READ} if self in (Scope.TUNE, Scope.CONTROL) else {self})


class KeyRecord(Result):
    """An API key as it is kept; its secret is not."""

    id: str
    name: str
    scopes: tuple[Scope, ...]
    tenant: str | None
    created: datetime
    revoked: datetime | None = None

    def allows(self, scope: Scope) -> bool:
        return any(scope in own.included for own in self.scopes)


class AuditRecord(Result):
    """One action through the service."""

    id: int
    at: datetime
    actor: str
    action: str
    target: str
    detail: str


class JobRecord(Result):
    """What the service knows of a study beyond the study. A study that was not submitted has the defaults."""

    study_id: str
    tenant: str | None = None
    submitted_by: str | None = None
    labels: Labels = Field(default_factory=dict)
    revision: int = 0
    progress: Mapping[str, Value] | None = None


class StudyLine(Result):
    """A study in a list. ``progress`` is None before a worker has said anything."""

    sequence: int
    id: str
    name: str
    model: str
    state: StudyState
    created: datetime
    updated: datetime
    slos: tuple[str, ...]
    maximize: str
    error: str | None
    recommendation: Recommendation | None
    tenant: str | None
    labels: Labels
    progress: Mapping[str, Value] | None


class TrialLine(Result):
    """A trial in a list: its figures without the documents behind them; what was not measured is None."""

    number: int
    origin: str
    state: TrialState
    outcome: str | None
    params: Mapping[str, Value]
    error: str | None
    tokens_per_joule: float | None
    output_rate: float | None
    ttft_p90: float | None
    itl_p99: float | None
    tpot_p90: float | None
    energy_source: str | None
    simulated: bool | None
    created: datetime
    ended: datetime | None


class StudyFilter(Result):
    """Which studies to list: those in one of ``states``, with all ``labels``, of ``tenant``; None and () mean any."""

    states: tuple[StudyState, ...] = ()
    labels: Labels = Field(default_factory=dict)
    tenant: str | None = None
    model: str | None = None


class TrialOrder(StrEnum):
    """By what trials are sorted: by number ascending, else the best first."""

    NUMBER = "number"
    TOKENS_PER_JOULE = "tokens_per_joule"
    OUTPUT_RATE = "output_rate"
    TTFT_P90 = "ttft_p90"
    ITL_P99 = "itl_p99"
    TPOT_P90 = "tpot_p90"

    @property
    def descending(self) -> bool:
        return self in (self.TOKENS_PER_JOULE, self.OUTPUT_RATE)


class TrialFilter(Result):
    """Which trials to list, and how they are sorted."""

    states: tuple[TrialState, ...] = ()
    outcomes: Sequence[str] = ()
    order: TrialOrder = TrialOrder.NUMBER
