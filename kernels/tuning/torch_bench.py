"""Problems with real tensors, on the GPU or, interpreted and for tests, on the CPU. Satisfies ``ports.Bench``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from .. import launch
from ..choices import Plan, Problem
from ..platform import Arch, multiprocessors
from .ports import Energy, Measurement, PlanError
from .space import candidates
from .uses import Run, build, bytes_of

COLD_BYTES = 256 << 20
"""Copies of a problem that are run in turn must exceed this together: several times the largest second-level cache,
since a model's layers never meet the previous layer's keys there."""

MOST_COPIES = 64
ERRORS = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""How far two plans of one operator may differ: twice what each may differ from the exact result."""


@dataclass(frozen=True, slots=True)
class TorchBench:
    """``energy(start, end)`` gives the device's energy between two moments of ``clock`` (None: it has no sensor).
    Copies of a problem are made until they exceed ``cold_bytes`` together."""

    device: torch.device
    arch: Arch
    energy: Callable[[float, float], Energy | None] | None = None
    clock: Callable[[], float] = time.perf_counter
    cold_bytes: int = COLD_BYTES

    @property
    def has_joules(self) -> bool:
        return self.energy is not None

    def candidates(self, problem: Problem) -> list[Plan]:
        return candidates(self.arch, problem, multiprocessors(self.device, self.arch))

    def load(self, problem: Problem) -> TorchSubject:
        with _as_plan_errors(f"{problem} cannot be loaded"):
            count = min(MOST_COPIES, launch.ceil_div(self.cold_bytes, bytes_of(problem)))
            copies = [build(problem, self.device, self.arch, seed) for seed in range(count)]
        return TorchSubject(self, copies, self.candidates(problem)[0])


class TorchSubject:
    """Equal uses of an operator with tensors of their own, run one after the other."""

    def __init__(self, bench: TorchBench, copies: list[Run], default: Plan) -> None:
        self._bench, self._copies, self._default = bench, copies, default
        self._expected: torch.Tensor | None = None
        self._graphs: dict[Plan, Callable[[], object]] = {}
        self._looks: dict[Plan, float] = {}

    def check(self, plan: Plan) -> None:
        with _as_plan_errors(f"The plan {plan} does not run"):
            if self._expected is None:
                self._expected = self._copies[0](self._default)
            out, expected = self._copies[0](plan).double(), self._expected.double()
            error = float((out - expected).norm() / expected.norm())
        limit = ERRORS[self._expected.dtype]
        if not error <= limit:
            raise PlanError(f"The plan {plan} is off by {error:.1e} of the default's result; allowed is {limit:.0e}.")

    def seconds(self, plan: Plan) -> float:
        """The least of a few passes: what disturbs one only makes it longer."""
        passed = self._passed(plan)
        taken = []
        with _as_plan_errors(f"The plan {plan} does not run"):
            for _ in range(5):
                start = self._bench.clock()
                passed()
                self._wait()
                taken.append(self._bench.clock() - start)
        self._looks[plan] = min(taken) / len(self._copies)
        return self._looks[plan]

    def window(self, plan: Plan, seconds: float) -> Measurement:
        """Passes queued for a twentieth of the window at a time, so that the device never waits for this process."""
        passed = self._passed(plan)
        look = self._looks.get(plan) or self.seconds(plan)
        burst = max(1, int(seconds / 20 / (look * len(self._copies))))
        runs, start = 0, self._bench.clock()
        with _as_plan_errors(f"The plan {plan} does not run"):
            while self._bench.clock() - start < seconds or runs == 0:
                for _ in range(burst):
                    passed()
                self._wait()
                runs += burst * len(self._copies)
        end = self._bench.clock()
        energy = None if self._bench.energy is None else self._bench.energy(start, end)
        return Measurement((end - start) / runs, None if energy is None else energy.each(runs))

    def _passed(self, plan: Plan) -> Callable[[], object]:
        """All copies once: on a GPU as a captured graph, since launching from Python takes longer than a small kernel.
        The last few graphs are kept."""
        if plan not in self._graphs:
            with _as_plan_errors(f"The plan {plan} cannot be captured"):
                while len(self._graphs) >= 8:
                    self._graphs.pop(next(iter(self._graphs)))
                self._graphs[plan] = self._captured(plan)
        return self._graphs[plan]

    def _captured(self, plan: Plan) -> Callable[[], object]:
        def once() -> None:
            for copy in self._copies:
                copy(plan)

        if self._bench.device.type != "cuda":
            return once
        once()
        torch.cuda.synchronize(self._bench.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            once()
        return graph.replay

    def _wait(self) -> None:
        if self._bench.device.type == "cuda":
            torch.cuda.synchronize(self._bench.device)


@contextmanager
def _as_plan_errors(what: str) -> Iterator[None]:
    """Compilers and drivers refuse a launch with errors of many unrelated classes. This is the border where any of
    them means that the plan, not the program, is at fault; the message keeps what was said."""
    try:
        yield
    except Exception as error:
        raise PlanError(f"{what}: {type(error).__name__}: {str(error)[:300]}") from error
