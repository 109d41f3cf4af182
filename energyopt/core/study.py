"""What a study is: its specification, its trials and its outcome; ``study_store`` is the port where all that is kept.

Our own records are the truth about a study; a search library's storage is a cache that is rebuilt from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import Field

from .config import Config, Deployment
from .results import Result, RunResult
from .units import Joules, Seconds
from .workload import Workload

Value = bool | int | float | str | None
"""A knob's value; None leaves the thing as it is found (an uncapped device)."""


Sampler = Literal["auto", "gp", "tpe", "random", "sobol", "optuna-gp"]


class Knob(Config):
    """One dimension of the search: ``path`` into a Deployment and the values it may take, in their natural order.

    ``ordinal`` says that the order means something (numbers); a categorical knob has none. A knob with ``when`` has an
    effect only where each knob that it names has one of the values given there; elsewhere it stays as in the baseline.
    """

    path: str
    values: tuple[Value, ...] = Field(min_length=1)
    ordinal: bool = True
    when: Mapping[str, tuple[Value, ...]] = Field(default_factory=dict)


class Space(Config):
    """All knobs of a study. Its digest names the space: other knobs are another space."""

    knobs: tuple[Knob, ...]

    @property
    def size(self) -> int:
        """Combinations before constraints."""
        product = 1
        for knob in self.knobs:
            product *= len(knob.values)
        return product


class MeasurePlan(Config):
    """How a run is measured.

    The load runs ``warmup`` seconds before the steady-state window opens, and the window lasts ``window`` seconds;
    ``timeout`` bounds launch and run together. Before the launch the machine gets up to ``settle`` seconds to become
    idle and cool.
    """

    warmup: Seconds = Field(Seconds(3.0), ge=0)
    window: Seconds = Field(Seconds(15.0), gt=0)
    timeout: Seconds = Field(Seconds(300.0), gt=0)
    settle: Seconds = Field(Seconds(0.0), ge=0)


class Budget(Config):
    """When the search stops: after ``trials`` (baseline included), or when the rest of ``seconds`` or ``joules`` is
    needed to verify.

    ``verify_pairs`` winner/baseline pairs are measured afterwards and are not part of the trials; ``seconds`` and
    ``joules`` (what the windows of all runs cost, as far as it was measured) cover them too.
    """

    trials: int = Field(ge=1)
    seconds: Seconds | None = Field(None, gt=0)
    verify_pairs: int = Field(3, ge=0)
    joules: Joules | None = Field(None, gt=0)


class StudySpec(Config):
    """Everything that defines a study; equal specs on equal hardware ask the same questions.

    ``slos`` are in their text form. ``sampler`` "auto" takes the best that the installed libraries allow.
    ``maximize`` is what the winner has most of: tokens per joule, or tokens per second where nothing measures joules.
    """

    name: str
    baseline: Deployment
    space: Space
    workload: Workload
    verify_workload: Workload
    slos: tuple[str, ...]
    budget: Budget
    plan: MeasurePlan = MeasurePlan()
    seed: int = 0
    sampler: Sampler = "auto"
    maximize: Literal["tokens_per_joule", "output_rate"] = "tokens_per_joule"


class StudyState(StrEnum):
    """``PAUSING`` and ``CANCELLING`` are wishes that whoever works on the study fulfils after the running trial."""

    QUEUED = "queued"
    PLANNING = "planning"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    VERIFYING = "verifying"
    SUCCEEDED = "succeeded"
    NO_FEASIBLE = "no_feasible"
    FAILED = "failed"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        return self in (self.SUCCEEDED, self.NO_FEASIBLE, self.FAILED, self.CANCELLED)


STATE_EVENT = "state"
"""Kind of the events of ``change_state``; their data are ``state`` and ``error``."""


class Origin(StrEnum):
    """Why a trial exists. ``REPEAT`` measures a configuration again, to be sure of it or to see the machine drift;
    ``VERIFY_*`` are the runs of the final comparison, on fresh prompts."""

    BASELINE = "baseline"
    SEARCH = "search"
    REPEAT = "repeat"
    USER = "user"
    VERIFY_WINNER = "verify_winner"
    VERIFY_BASELINE = "verify_baseline"

    @property
    def verifies(self) -> bool:
        return self in (self.VERIFY_WINNER, self.VERIFY_BASELINE)

    @property
    def repeats(self) -> bool:
        """Measures what has a trial of its own already, so it is no point of the space and on no front."""
        return self.verifies or self is self.REPEAT


class TrialState(StrEnum):
    """``QUEUED`` also after a lost attempt: the trial is run again."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"


class TrialOutcome(StrEnum):
    """What a finished trial says about its configuration; the last five are failures of the configuration."""

    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    OOM = "oom"
    LAUNCH_FAILED = "launch_failed"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    FAILED = "failed"


class TrialRecord(Result):
    """One trial. ``pair`` numbers the comparisons of the verification; ``result`` is None if it failed."""

    number: int
    origin: Origin
    params: Mapping[str, Value]
    deployment: Deployment
    state: TrialState
    outcome: TrialOutcome | None = None
    result: RunResult | None = None
    error: str | None = None
    pair: int | None = None
    attempts: int = 0
    created: datetime
    ended: datetime | None = None


class Recommendation(Result):
    """The outcome of a study that found something.

    ``saving`` is the relative energy per token saved by the winner, ``1 - tpj_baseline/tpj_winner``, as a mean over
    interleaved pairs with its confidence interval; None where no joules were measured. ``verified`` is True only if
    the winner kept every SLO on the fresh prompts and the interval excludes 0.
    """

    trial: int
    verified: bool
    pairs: int
    saving: float | None = None
    saving_low: float | None = None
    saving_high: float | None = None
    confidence: float = 0.95
    note: str = ""


class StudyRecord(Result):
    """A study as stored. ``owner`` is who works on it until ``lease_until``; another may take over after that."""

    id: str
    spec: StudySpec
    state: StudyState
    created: datetime
    updated: datetime
    machine: Mapping[str, str] = Field(default_factory=dict)
    recommendation: Recommendation | None = None
    error: str | None = None
    owner: str | None = None
    lease_until: datetime | None = None


class Event(Result):
    """Something that happened in a study; ``id`` grows within the database and never repeats."""

    id: int
    at: datetime
    kind: str
    data: Mapping[str, Value]


class Artifact(Result):
    """A file that belongs to a study (report, picture, manifest): where it lies and what it is."""

    name: str
    path: str
    media_type: str
    sha256: str
    bytes: int
