"""A device that is a formula: the tuner's fake, exact where no noise is asked for. Satisfies ``ports.Bench``."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from ..choices import Plan, Problem
from ..platform import Arch, arch_named
from .ports import Energy, Measurement, PlanError
from .space import candidates

Cost = Callable[[Problem, Plan], Measurement]


def occupancy_cost(problem: Problem, plan: Plan) -> Measurement:
    """More warps are faster and hungrier; a deeper pipeline hides latency; cutting keys pays where rows are few."""
    work = problem.rows * problem.length * 1e-9
    filled = min(1.0, max(1, plan.parts) * problem.rows / 64)
    seconds = work / filled * (1 + 0.2 / plan.stages) * (1 + 0.01 * abs(plan.columns - 64) / 64) + 1e-7 * plan.parts
    return Measurement(seconds, simulated(seconds * (300 + 10 * plan.warps)))


def simulated(joules: float) -> Energy:
    """What a formula says, and exactly that."""
    return Energy(joules, 0.0, "simulated")


@dataclass
class FakeBench:
    """``cost`` is the truth; each reading is off by up to ``noise`` of it. ``broken`` plans fail their check,
    ``breaking`` ones only when they are run at length; ``interrupt_after`` windows the user presses Ctrl-C."""

    cost: Cost = occupancy_cost
    noise: float = 0.0
    broken: Collection[Plan] = ()
    breaking: Collection[Plan] = ()
    joules: bool = True
    interrupt_after: int | None = None
    arch: Arch = field(default_factory=lambda: arch_named("sm_90"))
    windows: int = 0
    checked: list[Plan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(7)

    @property
    def has_joules(self) -> bool:
        return self.joules

    def candidates(self, problem: Problem) -> list[Plan]:
        return candidates(self.arch, problem, self.arch.multiprocessors)

    def load(self, problem: Problem) -> FakeSubject:
        return FakeSubject(self, problem)

    def read(self, problem: Problem, plan: Plan) -> Measurement:
        """The truth, with noise."""
        truth = self.cost(problem, plan)
        energy = None if truth.joules is None or not self.joules else simulated(truth.joules * self._factor())
        return Measurement(truth.seconds * self._factor(), energy)

    def _factor(self) -> float:
        return 1 + self.noise * self._random.uniform(-1, 1)


@dataclass
class FakeSubject:
    """One problem on the fake device. Satisfies ``ports.Subject``."""

    bench: FakeBench
    problem: Problem

    def check(self, plan: Plan) -> None:
        self.bench.checked.append(plan)
        if plan in self.bench.broken:
            raise PlanError(f"The plan {plan} does not compile: out of shared memory.")

    def seconds(self, plan: Plan) -> float:
        return self.bench.read(self.problem, plan).seconds

    def window(self, plan: Plan, seconds: float) -> Measurement:
        if self.bench.interrupt_after is not None and self.bench.windows >= self.bench.interrupt_after:
            raise KeyboardInterrupt
        if plan in self.bench.breaking:
            raise PlanError(f"The plan {plan} does not run: illegal memory access.")
        self.bench.windows += 1
        return self.bench.read(self.problem, plan)
