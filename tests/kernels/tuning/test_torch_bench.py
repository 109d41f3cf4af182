"""The tuner's device with real tensors, in the interpreter on tiny problems: every tuned operator runs every plan."""

from __future__ import annotations

import dataclasses
from itertools import count

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

from kernels.choices import Plan, Problem, Shape
from kernels.platform import INTERPRETER
from kernels.tuning.ports import Energy, PlanError
from kernels.tuning.torch_bench import TorchBench
from kernels.tuning.tuner import Effort, Found, Tuner

TINY = [
    Problem("paged_decode", Shape(4, 2, 16, "float32"), 2, 32),
    Problem("paged_decode", Shape(4, 2, 16, "float32", windowed=True), 1, 16),
    Problem("mla_decode", Shape(2, 0, 96, "float32"), 1, 32),
    Problem("paged_prefill", Shape(2, 1, 16, "float32"), 16, 32),
    Problem("add_rms_norm", Shape(1, 1, 64, "float32"), 2, 1),
]


def bench() -> TorchBench:
    """Time is what the clock's ticks say: each look takes one."""
    ticks = count()
    return TorchBench(
        torch.device("cpu"), INTERPRETER, lambda start, end: Energy(3 * (end - start), 0.3, "counter"),
        lambda: float(next(ticks)), cold_bytes=1,
    )  # fmt: skip


@pytest.mark.parametrize("problem", TINY, ids=str)
def test_plans_of_every_tuned_operator_give_what_the_default_gives(problem: Problem) -> None:
    place = bench()
    subject, plans = place.load(problem), place.candidates(problem)
    for plan in plans[:: max(1, len(plans) // 3)]:
        subject.check(plan)
    measured = subject.window(plans[0], 1.0)
    assert measured.seconds > 0
    assert measured.joules == pytest.approx(3 * measured.seconds)
    assert measured.energy is not None
    assert 0 < measured.energy.error <= 0.3
    assert measured.energy.source == "counter"


def test_a_whole_search_on_real_tensors() -> None:
    found: list[Found] = []
    place = dataclasses.replace(bench(), energy=None)
    Tuner(place, "time", Effort(1, 0.0)).tune(TINY[4:], (), found.append)
    assert [one.problem for one in found] == TINY[4:]
    assert not place.has_joules


def test_what_the_kernel_refuses_is_a_plan_error() -> None:
    subject = bench().load(TINY[0])
    refused = Plan(16, 15, 4, 3, 1)
    for run in (subject.check, subject.seconds, lambda plan: subject.window(plan, 1.0)):
        with pytest.raises(PlanError, match="does not run"):
            run(refused)


def test_a_wrong_result_is_a_plan_error(monkeypatch: pytest.MonkeyPatch) -> None:
    place = bench()
    subject, plans = place.load(TINY[4]), place.candidates(TINY[4])
    subject.check(plans[0])
    copy = subject._copies[0]
    monkeypatch.setattr(subject, "_copies", [lambda plan: copy(plan) * 1.01])
    with pytest.raises(PlanError, match=r"is off by 1\.0e-02 of the default's result"):
        subject.check(plans[1])


def test_a_problem_that_does_not_fit_is_a_plan_error() -> None:
    with pytest.raises(PlanError, match="cannot be loaded"):
        bench().load(Problem("paged_decode", Shape(32, 8, 128, "float32"), 1 << 20, 1 << 20))
