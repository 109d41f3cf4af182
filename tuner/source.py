"""Where a worker gets trials and brings results: the port, and the one that has the database at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from energyopt.core.config import Deployment
from energyopt.core.errors import NotFoundError
from energyopt.core.leases import TTL, LeaseRecord, LeaseStore, WorkerFacts
from energyopt.core.results import Result, RunResult
from energyopt.core.study import Origin, StudyRecord, StudySpec, StudyState, TrialOutcome, TrialRecord
from energyopt.core.study_store import StudyStore
from energyopt.core.units import Seconds
from energyopt.core.workload import Workload

from .attached import check_result
from .cuts import judged_by_baseline
from .objective import Objective


class LeasedTrial(Result):
    """A trial in the hands of a worker: all that it takes to measure it, nothing about the search.

    The lease ends ``ttl`` seconds after the last sign of life. ``spec`` and ``machine`` are those of the study: its
    facts name evaluator and meter, and its space tells which devices a configuration may use.
    """

    lease: str
    ttl: Seconds
    study: str
    number: int
    attempt: int
    origin: Origin
    deployment: Deployment
    spec: StudySpec
    machine: Mapping[str, str]

    @property
    def workload(self) -> Workload:
        """The load of this run: the final comparison has prompts of its own."""
        return self.spec.verify_workload if self.origin.verifies else self.spec.workload

    def study_record(self, now: datetime) -> StudyRecord:
        """The study as far as a worker knows it."""
        return StudyRecord(
            id=self.study, spec=self.spec, state=StudyState.RUNNING, created=now, updated=now, machine=self.machine
        )


class Failure(Result):
    """A trial that failed: ``outcome`` says how its configuration did."""

    outcome: TrialOutcome
    error: str


class TrialSource(Protocol):
    """Gives trials to one worker and takes what became of them. Safe to call from two threads.

    Every method raises StoreError while what is behind it is away, LeaseGoneError for a lease that has ended, and
    then nothing was changed.
    """

    def acquire(self, worker: WorkerFacts, wait: Seconds = Seconds(0.0)) -> LeasedTrial | None:
        """A trial; after ``wait`` seconds without one, None. Who holds one already gets that.

        Raises DevicesTakenError while somebody else measures on its devices.
        """
        ...

    def beat(self, lease: str, stage: str, fraction: float) -> None:
        """A sign of life, and where the run stands."""
        ...

    def complete(self, lease: str, result: RunResult) -> TrialOutcome:
        """The run was measured; what its SLOs make of it. Said twice, it counts once.

        Raises ConfigError for a result that contradicts itself: that is a fault.
        """
        ...

    def fail(self, lease: str, failure: Failure) -> None:
        """The configuration failed. Said twice, it counts once."""
        ...

    def fault(self, lease: str, reason: str) -> None:
        """Something failed that is not the configuration's: the trial is tried again, here or elsewhere."""
        ...

    def release(self, lease: str) -> None:
        """The worker will not measure it: as if it had never been leased."""
        ...


class DirectSource:
    """A ``TrialSource`` over the database. ``study_id`` restricts it to one study, ``tenant`` to those of a tenant."""

    def __init__(
        self,
        store: StudyStore,
        leases: LeaseStore,
        *,
        ttl: Seconds = TTL,
        tenant: str | None = None,
        study_id: str | None = None,
    ) -> None:
        self._store, self._leases, self._ttl = store, leases, ttl
        self._tenant, self.study_id = tenant, study_id

    def acquire(self, worker: WorkerFacts, wait: Seconds = Seconds(0.0)) -> LeasedTrial | None:
        """Does not wait: to ask again costs nothing here."""
        found = self._leases.acquire(worker, self._ttl, tenant=self._tenant, study_id=self.study_id)
        if found is None:
            return None
        try:
            study, trials = self._store.study(found.study_id), self._store.trials(found.study_id)
        except NotFoundError:
            return None  # it was deleted in this moment, and the lease with it
        return _leased(found, _numbered(trials, found.number), study, self._ttl)

    def beat(self, lease: str, stage: str, fraction: float) -> None:
        self._leases.renew(lease, self._ttl, stage=stage, fraction=fraction)

    def complete(self, lease: str, result: RunResult) -> TrialOutcome:
        study_id, number = self._leases.trial_of(lease)
        study = self._store.study(study_id)
        check_result(study.spec, result)
        if result.cut_requests:
            trials = self._store.trials(study_id)
            result = judged_by_baseline(result, _numbered(trials, number), trials)
        objective = Objective(study.spec.maximize, study.spec.slos)
        outcome = objective.outcome(result)
        said = {"outcome": outcome.value, "value": objective.value(result), "joules": result.joules}
        done = self._leases.finish(lease, outcome, result=result, summary=said)
        return done.outcome or outcome

    def fail(self, lease: str, failure: Failure) -> None:
        self._leases.finish(lease, failure.outcome, error=failure.error)

    def fault(self, lease: str, reason: str) -> None:
        self._leases.give_back(lease, fault=reason)

    def release(self, lease: str) -> None:
        self._leases.give_back(lease)


def _numbered(trials: Sequence[TrialRecord], number: int) -> TrialRecord:
    return next(trial for trial in trials if trial.number == number)


def _leased(lease: LeaseRecord, trial: TrialRecord, study: StudyRecord, ttl: Seconds) -> LeasedTrial:
    return LeasedTrial(
        lease=lease.id,
        ttl=ttl,
        study=study.id,
        number=trial.number,
        attempt=lease.attempt,
        origin=trial.origin,
        deployment=trial.deployment,
        spec=study.spec,
        machine=study.machine,
    )
