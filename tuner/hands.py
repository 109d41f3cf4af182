"""Who measures the queued trials of a study: this process itself, one after another, or workers that lease them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from energyopt.core.clock import Clock
from energyopt.core.errors import TrialError
from energyopt.core.leases import FINISHED, MAX_ATTEMPTS, REQUEUED, STARTED
from energyopt.core.results import RunResult
from energyopt.core.slo import Slo
from energyopt.core.study import StudyRecord, TrialOutcome, TrialRecord, TrialState, Value
from energyopt.core.study_store import StudyStore
from energyopt.core.units import Seconds

from .cuts import judged_by_baseline
from .lease import Lease
from .objective import Objective, outcome_of
from .ports import Evaluator, PowerController
from .progress import Reporter

NOBODY = ""
"""No owner: every attempt still marked as running is lost, whoever started it."""


class ComparisonMovedError(Exception):
    """The machine of the final comparison is gone: its runs are dropped, and another begins with the first pair."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What whoever leads a study works with."""

    store: StudyStore
    study: StudyRecord
    objective: Objective
    clock: Clock
    lease: Lease
    reporter: Reporter


class Hands(Protocol):
    """Measures queued trials of one study. What it returns is stored, with its events."""

    @property
    def width(self) -> int:
        """How many trials are worth having under way at once."""
        ...

    def recover(self) -> None:
        """Queue what an earlier leader lost, or count it as a crash of its configuration if that was often enough."""
        ...

    def begin(self, trial: TrialRecord) -> None:
        """Take up a trial that is queued, or that runs already for somebody else."""
        ...

    def ended(self) -> tuple[TrialRecord, Seconds]:
        """Block until one that was begun has ended: the trial, done, and how long it took.

        Raises StopAskedError, and ComparisonMovedError, after which nothing counts as begun.
        """
        ...

    def drain(self) -> None:
        """Block until nothing runs any more; what was begun and does not run yet stays queued."""
        ...

    def let_go(self) -> None:
        """The study is not worked on any more, for whatever reason."""
        ...


MakeHands = Callable[[Desk], Hands]


class OwnHands:
    """Measures in the calling thread, one trial at a time.

    A TrialError is a result about the configuration. Every other exception leaves the attempt as running, for
    ``recover``.
    """

    def __init__(self, desk: Desk, evaluator: Evaluator, power: PowerController, *, width: int = 1) -> None:
        """``width`` above 1 has that many chosen before the first of them is measured, as with many workers."""
        self.width = width
        self._desk, self._evaluator, self._power = desk, evaluator, power
        self._slos = [Slo.parse(text) for text in desk.study.spec.slos]
        self._begun: deque[TrialRecord] = deque()

    def recover(self) -> None:
        store, study = self._desk.store, self._desk.study.id
        for trial in store.trials(study):
            if trial.state is TrialState.RUNNING and trial.attempts >= MAX_ATTEMPTS:
                message = f"The process running this configuration was lost {trial.attempts} times."
                store.finish_trial(study, trial.number, TrialOutcome.CRASHED, error=message)
        self.let_go()

    def begin(self, trial: TrialRecord) -> None:
        self._begun.append(trial)

    def ended(self) -> tuple[TrialRecord, Seconds]:
        desk, trial = self._desk, self._begun.popleft()
        desk.store.start_attempt(desk.study.id, trial.number, desk.lease.owner)
        self._say(STARTED, {"trial": trial.number, "origin": trial.origin.value})
        desk.reporter.started(trial)
        began = desk.clock.now()
        result, outcome, message = self._measure(trial)
        took = Seconds(desk.clock.now() - began)
        desk.lease.confirm()
        done = desk.store.finish_trial(desk.study.id, trial.number, outcome, result=result, error=message)
        self._say(FINISHED, {"trial": done.number, **summary_of(done, desk.objective), "seconds": took})
        return done, took

    def drain(self) -> None:
        """Nothing runs between two calls."""

    def let_go(self) -> None:
        for number in self._desk.store.requeue_lost(self._desk.study.id, NOBODY):
            self._say(REQUEUED, {"trial": number})

    def _measure(self, trial: TrialRecord) -> tuple[RunResult | None, TrialOutcome, str | None]:
        spec, deployment = self._desk.study.spec, trial.deployment
        workload = spec.verify_workload if trial.origin.verifies else spec.workload
        try:
            with self._power.applied(deployment.decode.power):
                result = self._evaluator.run(deployment, workload, spec.plan, self._slos, self._desk.reporter.stage)
        except TrialError as error:
            return None, outcome_of(error), error.message
        result = judged_by_baseline(result, trial, self._desk.store.trials(self._desk.study.id))
        return result, self._desk.objective.outcome(result), None

    def _say(self, kind: str, data: Mapping[str, Value]) -> None:
        self._desk.store.add_event(self._desk.study.id, kind, data)


def summary_of(done: TrialRecord, objective: Objective) -> dict[str, Value]:
    """What the event of a finished trial says of it, beside its number and its duration."""
    return {
        "outcome": done.outcome.value if done.outcome else None,
        "value": objective.value(done.result) if done.result else None,
        "joules": done.result.joules if done.result else None,
        "ran": done.result is not None,
        "verifies": done.origin.verifies,
    }
