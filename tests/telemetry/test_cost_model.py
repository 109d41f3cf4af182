"""The fitted cost model finds what steps are made of, says how well, and stays out of the way until it can."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from energyopt.core.clock import FakeClock
from energyopt.core.records import Phase, StepRecord, StepShare
from energyopt.core.results import Scope, Source
from energyopt.core.units import Joules, Seconds
from telemetry.attribute import attribute
from telemetry.cost_model import TERMS, CostModel, FittedWeight, features, fitted_parts, solve
from telemetry.curve import EnergyCurve
from telemetry.fake import FakeSource
from telemetry.meter import Meter
from telemetry.ports import Sample, SensorId
from telemetry.weigh import COMPUTED, ComputeWeight

TRUE = dict(zip(TERMS, (8e-3, 60e-6, 400e-6, 2e-9, 90e-9, 4e-6, 25e-6, 0.0), strict=True))
"""Seconds per term of the machine that the tests invent; nothing is ever loaded from the shared tier."""


def batches(count: int, seed: int = 1) -> Iterator[tuple[StepShare, ...]]:
    """Steps as a scheduler makes them: some decodes, now and then a prompt chunk, sometimes from a slower tier."""
    chance = random.Random(seed)
    for number in range(count):
        decodes = [
            StepShare(f"d{index}", Phase.DECODE, 1, chance.randrange(20, 4000)) for index in range(chance.randrange(17))
        ]
        if chance.random() < 0.2 or not decodes:
            cached = {chance.choice(["device", "host", "disk"]): chance.randrange(16, 800)}
            tokens = chance.randrange(1, 1500)
            context = chance.choice([0, sum(cached.values())])
            decodes.append(StepShare(f"p{number}", Phase.PREFILL, tokens, context, cached if context else {}))
        yield tuple(decodes)


def seconds(shares: tuple[StepShare, ...], true: dict[str, float] | None = None) -> float:
    return float(np.dot(features(shares), list((true or TRUE).values())))


def steps(plan: Iterable[tuple[StepShare, ...]], *, noise: float = 0.0, seed: int = 2) -> Iterator[StepRecord]:
    chance = random.Random(seed)
    for shares in plan:
        lasted = seconds(shares) * chance.lognormvariate(0, noise)
        yield StepRecord(Seconds(10.0), Seconds(10.0 + lasted), ("GPU-1",), shares)


def fitted(count: int = 1500, *, noise: float = 0.05) -> FittedWeight:
    weigh = FittedWeight()
    for step in steps(batches(count), noise=noise):
        weigh.observe(step)
    return weigh


def test_finds_the_seconds_of_every_term() -> None:
    report = fitted(noise=0.0).report()
    assert report.trusted
    assert report.error == pytest.approx(0.0, abs=1e-3)
    for term, value in report.seconds.items():
        assert value == pytest.approx(TRUE[term], rel=1e-3, abs=1e-12), term


def test_finds_them_through_noise_and_states_its_error() -> None:
    report = fitted(noise=0.1).report()
    assert report.trusted
    assert report.error == pytest.approx(0.08, abs=0.03)  # mean |error| of a normal one is 0.8 sigma
    for term in ("step", "prefill_token", "decode_token", "decode_context"):
        assert report.seconds[term] == pytest.approx(TRUE[term], rel=0.12), term
    assert report.steps == 1500
    assert 0 < report.prefill_steps < 500


def test_reports_say_the_rule_and_its_error() -> None:
    clock = FakeClock()
    meter = Meter([FakeSource(clock)], clock, ("found",), weigh=FittedWeight())
    assert list(meter.reasons) == ["found"]
    plan = list(steps(batches(600), noise=0.1))
    meter.record(plan[0])
    assert "tokens and context; the fitted cost model is not used yet (1 steps" in meter.reasons[1]
    for step in plan:
        meter.record(step)
    assert meter.reasons[1].startswith("Energy within a step is divided by a cost model fitted to the steps (601 steps")
    assert "error 8%" in meter.reasons[1] or "error 9%" in meter.reasons[1]
    assert Meter((), clock, weigh=FittedWeight()).reasons == ()


def test_divides_a_mixed_step_as_it_was_spent() -> None:
    """A prompt chunk beside decodes: by tokens it would pay nearly all, here it pays its own and a part of the step."""
    weigh = fitted()
    shares = (
        StepShare("p", Phase.PREFILL, 100, 0, {"host": 400}),
        *(StepShare(f"d{index}", Phase.DECODE, 1, 1000) for index in range(10)),
    )
    parts = weigh(shares)
    whole = sum(part.weight for part in parts)
    prompt = sum(part.weight for part in parts if part.position == 0)
    expected = TRUE["step"] / 11 + 100 * TRUE["prefill_token"] + 100 * 50 * TRUE["prefill_context"] + 400 * 4e-6
    assert prompt / whole == pytest.approx(expected / seconds(shares), rel=0.1)
    assert [part.tier for part in parts if part.position == 0] == [COMPUTED, "host"]
    by_tokens = ComputeWeight()(shares)
    assert by_tokens[0].weight / sum(part.weight for part in by_tokens) > 2 * prompt / whole


def test_falls_back_until_it_can_be_trusted() -> None:
    weigh, plan = FittedWeight(), list(batches(2000))
    assert weigh.method == "compute_weight"
    assert weigh(plan[0]) == ComputeWeight()(plan[0])
    decodes_only = [shares for shares in plan if all(share.phase is Phase.DECODE for share in shares)]
    for step in steps(decodes_only):
        weigh.observe(step)
    assert weigh.method == "compute_weight"  # nothing is known about prompts
    for step in steps(plan):
        weigh.observe(step)
    assert weigh.method == "fitted_cost"


def test_does_not_trust_a_machine_that_is_not_like_this() -> None:
    weigh, chance = FittedWeight(), random.Random(3)
    for shares in batches(1500):
        lasted = chance.lognormvariate(-5, 2)
        weigh.observe(StepRecord(Seconds(0.0), Seconds(lasted), ("GPU-1",), shares))
    report = weigh.report()
    assert not report.trusted
    assert report.error is not None
    assert report.error > 0.4
    assert weigh.method == "compute_weight"


def test_remembers_what_prompts_cost_while_there_are_none() -> None:
    weigh = fitted(600, noise=0.02)
    decodes_only = [shares for shares in batches(6000, seed=9) if all(s.phase is Phase.DECODE for s in shares)]
    for step in steps(decodes_only, noise=0.02):
        weigh.observe(step)
    assert weigh.method == "fitted_cost"
    assert weigh.report().seconds["prefill_token"] == pytest.approx(TRUE["prefill_token"], rel=0.1)


def test_follows_a_machine_that_changes() -> None:
    """A clock that was lowered: the error rises, and falls again as the old steps are forgotten."""
    weigh = FittedWeight(CostModel(memory=100.0))
    slower = {term: 2 * value for term, value in TRUE.items()}
    errors = []
    for number, shares in enumerate(batches(2800)):
        lasted = seconds(shares, TRUE if number < 800 else slower)
        weigh.observe(StepRecord(Seconds(0.0), Seconds(lasted), ("GPU-1",), shares))
        errors.append(weigh.report().error or 0.0)
    assert errors[799] < 0.01 < 0.1 < max(errors[800:1000])
    assert errors[-1] < 0.02
    assert weigh.report().seconds["decode_token"] == pytest.approx(slower["decode_token"], rel=0.1)


def test_online_equals_least_squares_over_all_steps_at_once() -> None:
    """The slow twin: every step kept, one solve over the whole matrix."""
    plan = list(steps(batches(640), noise=0.1))
    model = CostModel(memory=1e12)
    for step in plan:
        model.observe(step)
    rows = np.array([np.array(features(step.shares)) / (step.end - step.start) for step in plan])
    scale = np.linalg.norm(rows, axis=0)
    scale[scale == 0] = 1.0
    expected, _ = nnls(rows / scale, np.ones(len(rows)))
    assert model.coefficients == pytest.approx(tuple(expected / scale), rel=1e-4, abs=1e-12)


def test_what_is_no_step_teaches_nothing() -> None:
    model = CostModel()
    share = (StepShare("a", Phase.DECODE, 1, 0),)
    for start, end, shares in ((1.0, 1.0, share), (2.0, 1.0, share), (1.0, float("inf"), share), (1.0, 2.0, ())):
        for _ in range(100):
            model.observe(StepRecord(Seconds(start), Seconds(end), ("GPU-1",), shares))
    assert model.counts == [0, 0]
    assert model.error is None


def test_memory_is_bounded() -> None:
    weigh = FittedWeight()
    sizes = set()
    for number, step in enumerate(steps(batches(400))):
        weigh.observe(step)
        if number > 100:
            model = weigh._model
            sizes.add(model._squares.nbytes + model._products.nbytes + len(model.coefficients))
    assert len(sizes) == 1


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.lists(st.sampled_from([0.0, 1.0, 2.0, 3e3, 5e6]), min_size=len(TERMS), max_size=len(TERMS)), max_size=12
    )
)
def test_a_solution_is_never_negative_or_undefined_however_degenerate(rows: list[list[float]]) -> None:
    matrix = np.array(rows).reshape(-1, len(TERMS))
    found = solve(matrix.T @ matrix, matrix.T @ np.ones(len(matrix)))
    assert len(found) == len(TERMS)
    assert all(np.isfinite(value) and value >= 0 for value in found)


SHARES = st.lists(
    st.builds(
        StepShare,
        request_id=st.sampled_from(["a", "b", "c"]),
        phase=st.sampled_from(list(Phase)),
        computed_tokens=st.integers(0, 4096),
        context_tokens=st.integers(0, 100_000),
        cached_tokens=st.dictionaries(st.sampled_from(["device", "host", "disk", "new"]), st.integers(0, 9999)),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(shares=SHARES, coefficients=st.lists(st.floats(0, 1e3), min_size=len(TERMS), max_size=len(TERMS)))
def test_parts_of_a_fit_sum_to_its_prediction_and_to_the_joules(
    shares: list[StepShare], coefficients: list[float]
) -> None:
    parts = fitted_parts(coefficients, shares)
    predicted = float(np.dot(features(shares), coefficients))
    assert sum(part.weight for part in parts) == pytest.approx(predicted, rel=1e-9, abs=1e-12)
    assert {part.position for part in parts} == set(range(len(shares)))
    assert all(part.weight >= 0 for part in parts)


@settings(max_examples=30, deadline=None)
@given(plan=st.lists(st.tuples(st.floats(0, 5), st.floats(0, 2), SHARES), max_size=8), watts=st.floats(1, 700))
def test_conserves_energy_when_fitted(plan: list[tuple[float, float, list[StepShare]]], watts: float) -> None:
    curve = EnergyCurve(SensorId("GPU-1", Scope.GPU), Source.COUNTER)
    for tick in range(101):
        curve.add(Sample(at=Seconds(tick / 10), counter=Joules(1 + watts * tick / 10)))
    records = [StepRecord(Seconds(at), Seconds(at + length), ("GPU-1",), tuple(s)) for at, length, s in plan]
    start, end = Seconds(0.3), Seconds(9.1)
    found = attribute(curve.nanojoules, records, start, end, FITTED)
    assert found.total == curve.nanojoules(end) - curve.nanojoules(start)
    assert sum(found.tiers.values()) == sum(found.requests.values())
    assert all(amount >= 0 for amount in (*found.requests.values(), *found.tiers.values()))


FITTED = fitted()
