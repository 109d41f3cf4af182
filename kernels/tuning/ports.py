"""The seam between the tuner and a device: load a problem, run one plan of it, tell seconds and joules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..choices import Plan, Problem


class PlanError(Exception):
    """A plan that does not compile, does not run, or gives something else than the default does."""


@dataclass(frozen=True, slots=True)
class Energy:
    """Joules with the half-width of their interval, and the kind of source that told them (``counter``, ...)."""

    joules: float
    error: float
    source: str

    def each(self, runs: int) -> Energy:
        """Of one out of ``runs`` equal runs."""
        return Energy(self.joules / runs, self.error / runs, self.source)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Of one run of a plan, the mean over a window. ``energy`` None: the device has no sensor for it."""

    seconds: float
    energy: Energy | None

    @property
    def joules(self) -> float | None:
        return None if self.energy is None else self.energy.joules


class Subject(Protocol):
    """One problem with its tensors in place."""

    def check(self, plan: Plan) -> None:
        """Raises PlanError unless ``plan`` runs and its output equals the default's within rounding."""
        ...

    def seconds(self, plan: Plan) -> float:
        """A quick look at the time of one run. Raises PlanError."""
        ...

    def window(self, plan: Plan, seconds: float) -> Measurement:
        """Run ``plan`` over and over for at least ``seconds``. Raises PlanError."""
        ...


class Bench(Protocol):
    """A device that problems can be measured on."""

    @property
    def has_joules(self) -> bool: ...

    def candidates(self, problem: Problem) -> list[Plan]:
        """The plans to try, the default first."""
        ...

    def load(self, problem: Problem) -> Subject:
        """Raises PlanError where the device cannot hold the problem."""
        ...
