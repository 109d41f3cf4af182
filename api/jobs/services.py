"""Everything the job service needs, handed over in one frozen bundle.

The protocols are what it asks of other rooms; they satisfy them by shape. The service builds none of these objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel

from energyopt.core.clock import Clock
from energyopt.core.config import Deployment
from energyopt.core.leases import LeaseStore
from energyopt.core.results import RunResult
from energyopt.core.study import StudyRecord, StudySpec, TrialOutcome, TrialRecord, Value
from energyopt.store.attached import SqlAttachedTrials
from energyopt.store.energy_history import EnergyHistory
from energyopt.store.event_tail import EventTail
from energyopt.store.jobs import SqlJobStore
from energyopt.store.keys import SqlKeyStore
from energyopt.store.label_energy import LabelEnergy
from energyopt.store.pages import SqlPages
from energyopt.store.repository import SqlStudyStore
from tuner.source import TrialSource


class Planned(Protocol):
    """A study before it is stored; ``document`` is what a dry run shows."""

    @property
    def spec(self) -> StudySpec: ...

    @property
    def machine(self) -> Mapping[str, str]: ...

    def document(self) -> dict[str, object]: ...


class StudyPlanner(Protocol):
    """Turns a checked body into a study. May take seconds, so it is called on a thread.

    ``form`` is the model of the body that names a model and an SLO; the other body is a whole StudySpec. Both refuse,
    with ConfigError, models and files outside what the service was allowed to touch.
    """

    form: type[BaseModel]

    def plan(self, request: BaseModel) -> Planned: ...

    def plan_spec(self, spec: StudySpec) -> Planned: ...

    def deployment(self, spec: StudySpec, params: Mapping[str, Value]) -> Deployment:
        """A point of the study's space as what would run. Raises ConfigError for what is none."""
        ...


class Outcomes(Protocol):
    """What a finished study says, from its records alone."""

    def manifest(self, study: StudyRecord, trials: Sequence[TrialRecord], form: str) -> tuple[str, str]:
        """Text and media type. Raises ConfigError for an unknown form, NotFoundError without a recommendation."""
        ...

    def nearest(self, trials: Sequence[TrialRecord]) -> str:
        """Why nothing is feasible, and what came nearest."""
        ...

    def judge(self, spec: StudySpec, result: RunResult) -> tuple[TrialOutcome, Mapping[str, Value]]:
        """What a result from elsewhere makes of its trial, and what its event says.

        Raises ConfigError for one that contradicts itself, or was not judged by the study's SLOs.
        """
        ...


class DeploymentPlans(Protocol):
    """``POST /v1/plans``: plans by simulation. ``form`` is the model of the body."""

    form: type[BaseModel]

    def make(self, request: BaseModel) -> dict[str, object]: ...


class WorkloadShelf(Protocol):
    """Uploaded workloads by name, in a folder of the service."""

    def names(self) -> list[dict[str, object]]: ...

    def put(self, name: str, content: bytes, form: str) -> dict[str, object]:
        """Keep a trace that can be read; returns its description. Raises ConfigError."""
        ...

    def describe(self, name: str) -> dict[str, object]: ...

    def remove(self, name: str) -> None: ...


class Devices(Protocol):
    """Devices of the host of the service, their power now, and leases on their limits. Blocks."""

    def look(self) -> list[dict[str, object]]: ...

    def acquire(self, devices: Sequence[str], cap: float | None, sm_clock: float | None, ttl: float) -> object: ...

    def release(self, devices: Sequence[str]) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True)
class JobLimits:
    """What clients may ask for. ``rate`` requests a second with bursts of ``burst``, for each key or address."""

    max_body_bytes: int = 64 * 2**20
    max_watchers: int = 1000
    max_page: int = 500
    rate: float = 100.0
    burst: int = 400


@dataclass(frozen=True, slots=True)
class JobServices:
    """The bundle. ``open_door``: without a single key everybody may do everything (loopback, or told to).

    ``hosts`` are the Host headers that are answered while the door is open, None for any: a browser that a foreign name
    led to this address is turned away. ``sources`` gives trials of a tenant (None: of all) to
    workers. ``artifacts`` is the folder that every artifact must lie in.
    """

    studies: SqlStudyStore
    jobs: SqlJobStore
    pages: SqlPages
    keys: SqlKeyStore
    tail: EventTail
    energy: EnergyHistory
    label_energy: LabelEnergy
    leases: LeaseStore
    attached: SqlAttachedTrials
    sources: Callable[[str | None], TrialSource]
    planner: StudyPlanner
    outcomes: Outcomes
    plans: DeploymentPlans
    workloads: WorkloadShelf
    devices: Devices
    artifacts: Path
    clock: Clock
    version: str
    open_door: bool = False
    hosts: frozenset[str] | None = None
    limits: JobLimits = field(default_factory=JobLimits)
