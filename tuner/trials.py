"""One trial from its stored request to its stored result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from energyopt.core.clock import Clock
from energyopt.core.errors import TrialError
from energyopt.core.results import RunResult
from energyopt.core.slo import Slo
from energyopt.core.study import Origin, StudyRecord, StudyState, TrialOutcome, TrialRecord, TrialState, Value
from energyopt.core.study_store import StudyStore
from energyopt.core.units import Seconds

from .lease import Lease
from .objective import Objective, outcome_of
from .ports import Evaluator, PowerController
from .progress import Reporter
from .space import Params, SearchSpace
from .timing import FINISHED, Timing

MAX_ATTEMPTS = 3
"""Attempts that vanished without a result before the configuration is held responsible."""

NOBODY = ""
"""No owner: every attempt still marked as running is lost, whoever started it."""


STOPPING = frozenset((StudyState.CANCELLING, StudyState.CANCELLED, StudyState.PAUSING))


class StopAskedError(Exception):
    """Somebody asked to pause or cancel the study; nothing is wrong."""


class TrialRunner:
    """Adds, runs and stores trials of one study; an attempt is on record before it starts.

    A TrialError is a result about the configuration. Every other exception leaves the attempt as running, for
    ``recover``.
    """

    def __init__(
        self,
        store: StudyStore,
        study: StudyRecord,
        space: SearchSpace,
        objective: Objective,
        evaluator: Evaluator,
        power: PowerController,
        clock: Clock,
        lease: Lease,
        timing: Timing,
        reporter: Reporter,
    ) -> None:
        self._store, self._study, self._space, self._objective = store, study, space, objective
        self._evaluator, self._power, self._clock = evaluator, power, clock
        self._lease, self._timing, self._reporter = lease, timing, reporter
        self._slos: Sequence[Slo] = [Slo.parse(text) for text in study.spec.slos]

    def all(self) -> list[TrialRecord]:
        return self._store.trials(self._study.id)

    def recover(self) -> None:
        """Queue the attempts that an earlier process lost; one lost too often is a crash of its configuration."""
        for trial in self.all():
            if trial.state is TrialState.RUNNING and trial.attempts >= MAX_ATTEMPTS:
                message = f"The process running this configuration was lost {trial.attempts} times."
                self._store.finish_trial(self._study.id, trial.number, TrialOutcome.CRASHED, error=message)
        self.requeue()

    def requeue(self) -> None:
        """Queue every attempt that is marked as running: it will be run again."""
        for number in self._store.requeue_lost(self._study.id, NOBODY):
            self._event("trial_requeued", {"trial": number})

    def add(self, params: Params, origin: Origin, pair: int | None = None) -> TrialRecord:
        """A new queued trial. Raises StopAskedError."""
        self._heed()
        self._lease.confirm()
        return self._store.add_trial(self._study.id, params, self._space.apply(params), origin, pair)

    def run(self, trial: TrialRecord) -> TrialRecord:
        """Run a queued trial and return it done. Raises StopAskedError before it starts."""
        self._heed()
        self._lease.confirm()
        self._store.start_attempt(self._study.id, trial.number, self._lease.owner)
        self._event("trial_started", {"trial": trial.number, "origin": trial.origin.value})
        self._reporter.started(trial)
        began = self._clock.now()
        result, outcome, message = self._measure(trial)
        took = Seconds(self._clock.now() - began)
        self._lease.confirm()
        done = self._store.finish_trial(self._study.id, trial.number, outcome, result=result, error=message)
        self._timing.note(took, ran=result is not None, joules=result.joules if result else None)
        self._event(FINISHED, self._summary(done, took))
        self._reporter.finished(done)
        return done

    def _heed(self) -> None:
        if self._store.study(self._study.id).state in STOPPING:
            raise StopAskedError

    def _measure(self, trial: TrialRecord) -> tuple[RunResult | None, TrialOutcome, str | None]:
        spec, deployment = self._study.spec, trial.deployment
        workload = spec.verify_workload if trial.origin.verifies else spec.workload
        try:
            with self._power.applied(deployment.decode.power):
                result = self._evaluator.run(deployment, workload, spec.plan, self._slos, self._reporter.stage)
        except TrialError as error:
            return None, outcome_of(error), error.message
        return result, self._objective.outcome(result), None

    def _summary(self, done: TrialRecord, took: Seconds) -> dict[str, Value]:
        return {
            "trial": done.number,
            "outcome": done.outcome.value if done.outcome else None,
            "value": self._objective.value(done.result) if done.result else None,
            "seconds": took,
            "joules": done.result.joules if done.result else None,
            "ran": done.result is not None,
            "verifies": done.origin.verifies,
        }

    def _event(self, kind: str, data: Mapping[str, Value]) -> None:
        self._store.add_event(self._study.id, kind, data)
