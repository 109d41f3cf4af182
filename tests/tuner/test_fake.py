"""The toy machine has the shape that the tuner's tests rely on."""

from __future__ import annotations

import pytest

from energyopt.core.clock import FakeClock
from energyopt.core.errors import LaunchError, OutOfMemoryError
from energyopt.core.results import RunResult
from energyopt.core.slo import Slo
from energyopt.core.study import MeasurePlan, Value
from tuner.fake import FakeEvaluator, ToySurface
from tuner.fake_study import TOY_SLOS, FakePowerController, toy_deployment, toy_space, toy_workload
from tuner.ports import Progress
from tuner.space import SearchSpace

SPACE = SearchSpace(toy_space(), toy_deployment())
SLOS = [Slo.parse(text) for text in TOY_SLOS]


def run(evaluator: FakeEvaluator, **changes: Value) -> RunResult:
    knobs = {knob.path.rsplit(".", 1)[1]: knob.path for knob in SPACE.knobs}
    params = {**SPACE.baseline_params, **{knobs[name]: value for name, value in changes.items()}}
    return evaluator.run(SPACE.apply(params), toy_workload(), MeasurePlan(), SLOS, lambda progress: None)


def exact() -> FakeEvaluator:
    return FakeEvaluator(FakeClock(), noise=0.0)


def test_batching_saves_energy_and_costs_latency() -> None:
    small, large = run(exact(), max_num_seqs=8), run(exact(), max_num_seqs=32)
    assert (large.tokens_per_joule or 0) > 1.2 * (small.tokens_per_joule or 0)
    assert large.latencies["itl"].p50 > small.latencies["itl"].p50


def test_the_best_clock_lies_inside_its_range() -> None:
    values = [run(exact(), sm_clock=clock).tokens_per_joule or 0 for clock in (0.6e9, 0.9e9, 1.2e9, 1.5e9, 1.8e9, None)]
    assert max(values) > 1.2 * values[-1]
    assert values != sorted(values)


def test_too_many_sequences_do_not_fit_and_too_many_threads_do_not_start() -> None:
    with pytest.raises(OutOfMemoryError):
        run(exact(), max_num_seqs=64, max_num_batched_tokens=4096)
    engine = toy_deployment().decode.engine.model_copy(update={"threads": 17})
    deployment = toy_deployment().model_copy(
        update={"decode": toy_deployment().decode.model_copy(update={"engine": engine})}
    )
    with pytest.raises(LaunchError):
        ToySurface().point(deployment, 48)


def test_noise_is_drawn_from_the_seed_and_differs_between_repetitions() -> None:
    first, second = FakeEvaluator(FakeClock(), seed=1), FakeEvaluator(FakeClock(), seed=1)
    assert run(first) == run(second)
    assert run(first) != run(FakeEvaluator(FakeClock(), seed=2))
    assert run(first).tokens_per_joule != run(first).tokens_per_joule


def test_joules_are_labelled_and_absent_without_a_meter() -> None:
    metered, blind = run(exact()), run(FakeEvaluator(FakeClock(), metered=False))
    assert metered.energy is not None
    assert metered.energy.label == "simulated"
    assert metered.simulated
    assert blind.tokens_per_joule is None
    assert blind.power_reasons


def test_time_passes_as_planned_and_progress_is_told() -> None:
    clock, seen = FakeClock(), list[Progress]()
    plan = MeasurePlan()
    FakeEvaluator(clock, launch=2.0).run(toy_deployment(), toy_workload(), plan, SLOS, seen.append)
    assert clock.now() == 2.0 + plan.warmup + plan.window
    assert [progress.stage for progress in seen] == [
        "launching",
        "warming",
        "warming",
        "measuring",
        "measuring",
        "done",
    ]


def test_the_power_controller_puts_back_what_it_found() -> None:
    power = FakePowerController()
    wanted = toy_deployment().decode.power.model_copy(update={"cap": 200.0})

    def fail_inside() -> None:
        with power.applied(wanted):
            assert power.now == wanted
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_inside()
    assert power.now.cap is None
    assert power.history == [wanted]
