"""The search on a device that is a formula: it finds the optimum, and noise, failures and Ctrl-C do no harm."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kernels.choices import Plan, Problem, Shape
from kernels.tuning.fake import FakeBench, occupancy_cost, simulated
from kernels.tuning.objective import TIME_MARGIN, Series, choose
from kernels.tuning.ports import Energy, Measurement, PlanError
from kernels.tuning.problems import ModelShape, problems_of
from kernels.tuning.tuner import FINALISTS, Effort, Found, Progress, Tuner, finalists

SHAPE = Shape(32, 8, 128, "bfloat16")
DECODE = Problem("paged_decode", SHAPE, 8, 8192)
QUICK = Effort(rounds=3, seconds=0.0)


def search(bench: FakeBench, *problems: Problem, objective: str = "energy") -> list[Found]:
    found: list[Found] = []
    tuner = Tuner(bench, "energy" if objective == "energy" else "time", QUICK)
    assert tuner.tune(problems or (DECODE,), (), found.append) == []
    return found


def test_energy_takes_the_least_joules_within_the_margin_of_the_fastest() -> None:
    bench = FakeBench()
    costs = {plan: occupancy_cost(DECODE, plan) for plan in bench.candidates(DECODE)}
    fastest = min(cost.seconds for cost in costs.values())
    near = [cost for cost in costs.values() if cost.seconds <= fastest * TIME_MARGIN]
    (found,) = search(bench)
    taken = costs[found.plan]
    assert taken.seconds <= fastest * TIME_MARGIN
    assert taken.joules == min(cost.joules or 0 for cost in near)
    assert found.tried == len(costs)
    assert found.failures == ()


def test_time_takes_the_fastest() -> None:
    bench = FakeBench()
    (found,) = search(bench, objective="time")
    assert found.series.seconds == min(occupancy_cost(DECODE, p).seconds for p in bench.candidates(DECODE))


@pytest.mark.parametrize("noise", [0.002, 0.01, 0.05])
def test_noise_never_costs_more_than_itself(noise: float) -> None:
    """The truth of what was taken is within noise and margin of the best, and never worse than the default's."""
    (found,) = search(FakeBench(noise=noise))
    truth = {plan: occupancy_cost(DECODE, plan) for plan in FakeBench().candidates(DECODE)}
    default = truth[FakeBench().candidates(DECODE)[0]]
    taken = truth[found.plan]
    assert taken.seconds <= min(t.seconds for t in truth.values()) * TIME_MARGIN * (1 + 2 * noise)
    assert (taken.joules or 0) <= (default.joules or 0) * (1 + 2 * noise)


def test_the_default_stays_where_nothing_is_better_beyond_noise() -> None:
    def flat(problem: Problem, plan: Plan) -> Measurement:
        return Measurement(1e-3, simulated(0.3))

    (found,) = search(FakeBench(cost=flat, noise=0.03))
    assert found.plan == FakeBench().candidates(DECODE)[0]


def test_a_failing_plan_is_skipped_and_counted() -> None:
    plans = FakeBench().candidates(DECODE)
    (best,) = search(FakeBench())
    bench = FakeBench(broken={best.plan, plans[1]})
    (found,) = search(bench)
    assert found.plan not in bench.broken
    assert {failure.plan for failure in found.failures} == bench.broken
    assert all("out of shared memory" in failure.reason for failure in found.failures)
    assert len(bench.checked) == len(plans)


def test_a_plan_that_fails_only_when_it_is_run_at_length_is_out_and_no_other() -> None:
    (best,) = search(FakeBench())
    (found,) = search(bench := FakeBench(breaking={best.plan}))
    assert found.plan not in bench.breaking
    assert [(one.plan, "illegal memory access" in one.reason) for one in found.failures] == [(best.plan, True)]
    skipped = Tuner(FakeBench(breaking={FakeBench().candidates(DECODE)[0]}), "energy", QUICK).tune([DECODE], (), print)
    assert "illegal memory access" in skipped[0].reason


def test_a_problem_whose_default_fails_is_left_out_with_its_reason() -> None:
    plans = FakeBench().candidates(DECODE)
    other = Problem("add_rms_norm", Shape(1, 1, 4096, "bfloat16"), 8, 1)
    found: list[Found] = []
    skipped = Tuner(FakeBench(broken={plans[0]}), "energy", QUICK).tune([DECODE, other], (), found.append)
    assert [(one.problem, "out of shared memory" in one.reason) for one in skipped] == [(DECODE, True)]
    assert [one.problem for one in found] == [other]


def test_an_interrupted_search_keeps_what_it_had_and_goes_on() -> None:
    problems = problems_of(ModelShape(), "bfloat16")[:4]
    found: list[Found] = []
    with pytest.raises(KeyboardInterrupt):
        Tuner(FakeBench(interrupt_after=35), "energy", QUICK).tune(problems, (), found.append)
    assert 0 < len(found) < len(problems)
    kept = {one.problem: one.plan for one in found}
    Tuner(FakeBench(), "energy", QUICK).tune(problems, kept, found.append)
    assert [one.problem for one in found] == problems
    assert {one.problem: one.plan for one in found} == {one.problem: one.plan for one in search(FakeBench(), *problems)}


def test_without_joules_energy_decides_nothing_and_says_so() -> None:
    found: list[Found] = []
    skipped = Tuner(FakeBench(joules=False), "energy", QUICK).tune([DECODE], (), found.append)
    assert found == []
    assert "told no joules of some windows" in skipped[0].reason
    Tuner(FakeBench(joules=False), "time", QUICK).tune([DECODE], (), found.append)
    assert found[0].series.joules is None
    assert found[0].series.seconds <= found[0].default.seconds


def test_progress_only_grows() -> None:
    seen: list[Progress] = []
    tuner = Tuner(FakeBench(), "energy", QUICK, seen.append)
    tuner.tune(problems_of(ModelShape(), "bfloat16")[:2], (), lambda found: None)
    points = [(p.done, p.stage == "measuring", p.step) for p in seen]
    assert all(a < b for a, b in pairwise(points))
    assert all(p.step < p.steps and p.done < p.total for p in seen)


def test_finalists_are_few_and_always_hold_the_default() -> None:
    plans = [Plan(16, 16, 4, stage) for stage in range(20)]
    looks = {plan: 1.0 + plan.stages / 100 for plan in plans}
    assert finalists(plans[9], looks) == [plans[9], *plans[:FINALISTS]]
    assert finalists(plans[0], {plans[0]: 1.0, plans[1]: 2.0}) == [plans[0]]


def test_a_default_that_is_too_slow_loses_even_with_fewer_joules() -> None:
    slow, quick = Plan(1, 1, 1, 1), Plan(2, 2, 2, 2)
    series = {
        slow: Series(slow, (Measurement(2.0, simulated(1.0)),) * 3),
        quick: Series(quick, (Measurement(1.0, simulated(3.0)),) * 3),
    }
    assert choose(slow, series, "energy") == quick


def test_seconds_are_never_compared_with_joules() -> None:
    """A sensor that misses one window: 5e-4 "of something" would beat 0.2 J, and is the slower plan's time."""
    quick, slow = Plan(1, 1, 1, 1), Plan(2, 2, 2, 2)
    windows = (Measurement(5.1e-4, simulated(0.2)),) * 2
    series = {
        quick: Series(quick, (Measurement(5e-4, simulated(0.2)),) * 3),
        slow: Series(slow, (*windows, Measurement(5.1e-4, None))),
    }
    with pytest.raises(PlanError, match="no joules"):
        choose(quick, series, "energy")
    assert choose(quick, series, "time") == quick
    with pytest.raises(ValueError, match="has no joules"):
        series[slow].score("energy")


def test_a_series_tells_where_its_joules_are_from_and_how_sure_they_are() -> None:
    plan, readings = Plan(1, 1, 1, 1), (Energy(1.0, 0.1, "counter"), Energy(1.2, 0.1, "counter"))
    two = Series(plan, tuple(Measurement(1.0, one) for one in readings))
    assert two.energy == Energy(1.1, 0.1, "counter")
    three = Series(plan, (*two.windows, Measurement(1.0, Energy(2.0, 0.1, "integrated"))))
    assert three.energy == Energy(1.2, 0.5, "counter+integrated")


@pytest.mark.parametrize("model", [ModelShape(), ModelShape(128, 0, 576, 7168), ModelShape(64, 8, 64, 2880, 128)])
def test_the_problems_of_each_kind_of_model_can_be_searched(model: ModelShape) -> None:
    problems = problems_of(model, "bfloat16")
    assert len(set(problems)) == len(problems)
    assert len(search(FakeBench(), *problems)) == len(problems)


def test_an_unknown_operator_is_named() -> None:
    with pytest.raises(ValueError, match="'sort' is not tuned; tuned are paged_decode"):
        FakeBench().candidates(Problem("sort", SHAPE, 1, 1))
    with pytest.raises(ValueError, match="no number format"):
        FakeBench().candidates(Problem("paged_decode", Shape(8, 8, 64, "load"), 1, 1))
    with pytest.raises(PlanError, match="out of shared memory"):
        FakeBench(broken={Plan(1, 1, 1, 1)}).load(DECODE).check(Plan(1, 1, 1, 1))
