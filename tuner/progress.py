"""Where a study stands, for a person who waits for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from energyopt.core.clock import Clock
from energyopt.core.study import StudySpec, TrialOutcome, TrialRecord
from energyopt.core.units import Seconds

from .objective import Objective
from .ports import Progress
from .timing import Timing


@dataclass(frozen=True, slots=True)
class StudyProgress:
    """One moment of a study.

    ``trial`` is the number of the trial that runs (None between trials), ``done`` of ``total`` runs are finished,
    verification included. ``stage`` and ``fraction`` are the trial's. ``best`` is the best feasible value so far in
    the objective's unit, ``eta`` the seconds left; both None while unknown.
    """

    trial: int | None
    done: int
    total: int
    stage: str
    fraction: float
    best: float | None
    eta: Seconds | None
    message: str


StudyProgressSink = Callable[[StudyProgress], None]


class Reporter:
    """Turns what happens in a study into StudyProgress. Keeps counts and the best value; decides nothing."""

    def __init__(self, spec: StudySpec, objective: Objective, timing: Timing, clock: Clock, sink: StudyProgressSink):
        self._objective, self._timing, self._clock, self._sink = objective, timing, clock, sink
        self._search_runs, self._verify_runs = spec.budget.trials, 2 * spec.budget.verify_pairs
        self._done: set[int] = set()
        self._searched = 0
        self._values: dict[str, float] = {}
        self._missed: set[str] = set()
        self._current: TrialRecord | None = None
        self._since = clock.now()

    @property
    def best(self) -> float | None:
        """The best value of a configuration that has kept every SLO whenever it was measured."""
        return max((value for key, value in self._values.items() if key not in self._missed), default=None)

    def search_is_over(self) -> None:
        """No further search trials: the total shrinks to what was run."""
        self._search_runs = self._searched
        self.say(f"{self._searched} configurations measured")

    def say(self, message: str, stage: str = "") -> None:
        self._emit(stage, 0.0, message)

    def started(self, trial: TrialRecord) -> None:
        self._current, self._since = trial, self._clock.now()
        self._emit("launching", 0.0, f"trial {trial.number} ({trial.origin})")

    def stage(self, progress: Progress) -> None:
        """The sink handed to the evaluator."""
        self._emit(progress.stage, progress.fraction, "")

    def finished(self, trial: TrialRecord) -> None:
        """Also called for the trials that an earlier process finished."""
        if trial.number not in self._done:
            self._done.add(trial.number)
            self._searched += not trial.origin.verifies
        key = trial.deployment.digest()
        if trial.outcome is not TrialOutcome.FEASIBLE:
            self._missed.add(key)
        elif trial.result is not None and not trial.origin.repeats:
            value = self._objective.value(trial.result)
            if value is not None:
                self._values[key] = value
        self._current = None
        self._emit("done", 1.0, self._words(trial))

    def _words(self, trial: TrialRecord) -> str:
        value = self._objective.value(trial.result) if trial.result else None
        figure = "" if value is None else f", {value:.3g} {self._objective.unit}"
        why = f" ({trial.error.removesuffix('.')})" if trial.error else ""
        return f"trial {trial.number}: {trial.outcome}{figure}{why}"

    def _emit(self, stage: str, fraction: float, message: str) -> None:
        number = None if self._current is None else self._current.number
        total = max(self._search_runs + self._verify_runs, len(self._done) + (number is not None))
        eta = self._eta(total)
        self._sink(StudyProgress(number, len(self._done), total, stage, fraction, self.best, eta, message))

    def _eta(self, total: int) -> Seconds | None:
        typical = self._timing.typical
        if typical is None:
            return None
        running = 0.0
        if self._current is not None:
            running = typical - max(0.0, typical - (self._clock.now() - self._since))
        ahead = typical * max(0, total - len(self._done))
        left = self._timing.left
        return Seconds(max(0.0, (ahead if left is None else min(ahead, left + running)) - running))
