"""The search for the best launch of each problem: look at every plan, measure the few that could win, keep what wins.

A plan that fails is left out, a problem that cannot be loaded too, each with its reason. After each
problem ``on_found`` gets the choice, so that an interrupted search keeps what it had and goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..choices import Plan, Problem
from .objective import TIME_MARGIN, Objective, Series, choose
from .ports import Bench, Measurement, PlanError, Subject

FINALISTS = 4
"""Plans that are measured at length, the default aside."""

LOOK_MARGIN = 1.1
"""A quick look may err by this much; slower ones than that cannot be within the margin of the fastest."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure: ``rounds`` windows of ``seconds`` for each finalist, in turn. An energy counter that moves
    every tenth of a second then errs by 2% of a window, and the median by less."""

    rounds: int = 3
    seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class Failure:
    """A plan that cannot be taken, and why."""

    plan: Plan
    reason: str


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome for one problem: the plan to take, its series beside the default's, and the plans that failed."""

    problem: Problem
    plan: Plan
    series: Series
    default: Series
    tried: int
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A problem that this device cannot measure."""

    problem: Problem
    reason: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the search stands: ``done`` of ``total`` problems, and what it does now."""

    done: int
    total: int
    problem: Problem
    stage: Literal["looking", "measuring"]
    step: int
    steps: int


@dataclass(slots=True)
class Tuner:
    """Tunes on ``bench`` for ``objective``."""

    bench: Bench
    objective: Objective
    effort: Effort = field(default_factory=Effort)
    on_progress: Callable[[Progress], None] = lambda progress: None

    def tune(
        self, problems: Sequence[Problem], known: Container[Problem], on_found: Callable[[Found], None]
    ) -> list[Skipped]:
        """Search every problem that is not ``known``; gives those that could not be."""
        skipped = []
        for index, problem in enumerate(problems):
            if problem in known:
                continue
            try:
                on_found(self._search(problem, index, len(problems)))
            except PlanError as error:
                skipped.append(Skipped(problem, str(error)))
        return skipped

    def _search(self, problem: Problem, done: int, total: int) -> Found:
        subject, plans = self.bench.load(problem), self.bench.candidates(problem)

        def tell(stage: Literal["looking", "measuring"], step: int, steps: int) -> None:
            self.on_progress(Progress(done, total, problem, stage, step, steps))

        failures: list[Failure] = []
        looks = self._look(subject, plans, failures, tell)
        series = self._measure(subject, finalists(plans[0], looks), failures, tell)
        plan = choose(plans[0], series, self.objective)
        return Found(problem, plan, series[plan], series[plans[0]], len(plans), tuple(failures))

    def _look(
        self, subject: Subject, plans: Sequence[Plan], failures: list[Failure], tell: Callable[..., None]
    ) -> dict[Plan, float]:
        """The time of every plan that works. Raises PlanError where the default does not: then nothing can be told."""
        looks = {}
        for step, plan in enumerate(plans):
            tell("looking", step, len(plans))
            try:
                subject.check(plan)
                looks[plan] = subject.seconds(plan)
            except PlanError as error:
                if plan == plans[0]:
                    raise
                failures.append(Failure(plan, str(error)))
        return looks

    def _measure(
        self, subject: Subject, plans: Sequence[Plan], failures: list[Failure], tell: Callable[..., None]
    ) -> dict[Plan, Series]:
        """Windows in turn, so that a drift of the device meets all plans alike. A plan that fails now is out; raises
        PlanError for the default."""
        windows: dict[Plan, list[Measurement]] = {plan: [] for plan in plans}
        for turn in range(self.effort.rounds):
            for step, plan in enumerate(plans):
                tell("measuring", turn * len(plans) + step, self.effort.rounds * len(plans))
                if plan not in windows:
                    continue
                try:
                    windows[plan].append(subject.window(plan, self.effort.seconds))
                except PlanError as error:
                    if plan == plans[0]:
                        raise
                    failures.append(Failure(plan, str(error)))
                    del windows[plan]
        return {plan: Series(plan, tuple(seen)) for plan, seen in windows.items()}


def finalists(default: Plan, looks: dict[Plan, float]) -> list[Plan]:
    """The default and the fastest others that could still be within the objective's margin."""
    limit = min(looks.values()) * TIME_MARGIN * LOOK_MARGIN
    rivals = sorted((plan for plan in looks if plan != default and looks[plan] <= limit), key=looks.__getitem__)
    return [default, *rivals[:FINALISTS]]
