"""Attribution loses nothing, invents nothing, and charges who computed."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.records import Phase, StepRecord, StepShare
from energyopt.core.results import Scope, Source
from energyopt.core.units import Joules, Seconds
from telemetry.attribute import attribute, runs_on
from telemetry.curve import EnergyCurve
from telemetry.divide import divide
from telemetry.ports import Sample, SensorId
from telemetry.weigh import ComputeWeight

GPU = SensorId("GPU-1", Scope.GPU)


def step(start: float, end: float, *shares: StepShare, device: str = "GPU-1") -> StepRecord:
    return StepRecord(Seconds(start), Seconds(end), (device,), shares)


def prefill(request: str, tokens: int, context: int = 0) -> StepShare:
    return StepShare(request, Phase.PREFILL, tokens, context)


def decode(request: str, context: int = 0) -> StepShare:
    return StepShare(request, Phase.DECODE, 1, context)


def rising(increments: Iterable[float]) -> EnergyCurve:
    """A curve that grows by these joules every 100 ms."""
    curve, total = EnergyCurve(GPU, Source.COUNTER), 0.0
    for index, increment in enumerate(increments):
        total += increment
        curve.add(Sample(at=Seconds(index / 10), counter=Joules(total)))
    return curve


def steady(watts: float) -> EnergyCurve:
    return rising([watts / 10] * 1001)


def test_parts_are_prefill_decode_idle_and_overhead() -> None:
    steps = [step(2, 4, prefill("a", 100)), step(4, 5, decode("a")), step(5, 5.5)]
    found = attribute(steady(100.0).nanojoules, steps, Seconds(1), Seconds(10), ComputeWeight())
    split = found.split()
    assert (split.prefill, split.decode, split.overhead, split.idle) == pytest.approx((200.0, 100.0, 50.0, 550.0))
    assert found.requests["a", Phase.PREFILL] == 200_000_000_000


def test_a_step_across_the_edge_counts_with_its_part_inside() -> None:
    steps = [step(0.5, 3, decode("early")), step(9, 12, decode("late"))]
    found = attribute(steady(100.0).nanojoules, steps, Seconds(1), Seconds(10), ComputeWeight())
    assert found.requests["early", Phase.DECODE] == pytest.approx(200e9)
    assert found.requests["late", Phase.DECODE] == pytest.approx(100e9)
    assert found.idle == pytest.approx(600e9)


def test_overlapping_steps_share_the_overlap() -> None:
    steps = [step(1, 5, decode("a")), step(3, 7, decode("b"))]
    found = attribute(steady(100.0).nanojoules, steps, Seconds(1), Seconds(7), ComputeWeight())
    assert found.requests["a", Phase.DECODE] == pytest.approx(300e9)
    assert found.requests["b", Phase.DECODE] == pytest.approx(300e9)
    assert found.idle == 0


def test_weight_grows_with_tokens_and_context() -> None:
    weigh = ComputeWeight(context_scale=4096).of
    assert weigh(decode("a", 0)) < weigh(decode("a", 4096)) < weigh(decode("a", 8192))
    assert weigh(decode("a", 4096)) == pytest.approx(2 * weigh(decode("a", 0)), rel=1e-3)
    assert weigh(prefill("a", 512)) > 512 * weigh(decode("a", 0)) * 0.99
    assert weigh(prefill("a", 0)) == 0


def test_chunks_of_a_prefill_weigh_as_the_whole() -> None:
    weigh = ComputeWeight().of
    chunks = weigh(prefill("a", 512)) + weigh(prefill("a", 512, 512)) + weigh(prefill("a", 1024, 1024))
    assert chunks == pytest.approx(weigh(prefill("a", 2048)))


def test_a_step_whose_shares_computed_nothing_is_divided_equally() -> None:
    found = attribute(
        steady(100.0).nanojoules,
        [step(1, 2, prefill("a", 0), prefill("b", 0))],
        Seconds(1),
        Seconds(2),
        ComputeWeight(),
    )
    assert found.requests["a", Phase.PREFILL] == found.requests["b", Phase.PREFILL] == pytest.approx(50e9)


@pytest.mark.parametrize(
    ("sensor", "devices", "expected"),
    [
        (SensorId("GPU-1", Scope.GPU), ("GPU-1", "GPU-2"), True),
        (SensorId("GPU-3", Scope.GPU), ("GPU-1", "GPU-2"), False),
        (SensorId("cpu:1", Scope.CPU_PACKAGE), ("cpu:0",), True),
        (SensorId("cpu:0", Scope.DRAM), ("cpu:0",), True),
        (SensorId("cpu:0", Scope.CPU_PACKAGE), ("GPU-1",), False),
    ],
)
def test_which_steps_a_sensor_sees(sensor: SensorId, devices: tuple[str, ...], expected: bool) -> None:
    record = StepRecord(Seconds(0), Seconds(1), devices, ())
    assert runs_on(record, sensor) is expected


@given(amount=st.integers(0, 10**24), weights=st.lists(st.floats(0, 1e18), min_size=1, max_size=40))
def test_divide_sums_exactly_and_never_goes_below_zero(amount: int, weights: list[float]) -> None:
    parts = divide(amount, weights)
    assert sum(parts) == amount
    assert all(part >= 0 for part in parts)
    if any(weights):
        total = sum(weights)
        assert all(abs(p - amount * (w / total)) <= 1 + amount * 1e-12 for p, w in zip(parts, weights, strict=True))


def test_divide_gives_the_rest_to_the_largest_remainders() -> None:
    assert divide(10, [1.0, 1.0, 1.0]) == [4, 3, 3]
    assert divide(7, [2.0, 1.0]) == [5, 2]
    assert divide(0, [1.0]) == [0]
    assert divide(5, []) == []


SHARES = st.lists(
    st.builds(
        StepShare,
        request_id=st.sampled_from(["a", "b", "c"]),
        phase=st.sampled_from(list(Phase)),
        computed_tokens=st.integers(0, 4096),
        context_tokens=st.integers(0, 100_000),
    ),
    max_size=5,
)
STEPS = st.lists(st.tuples(st.floats(0, 10), st.floats(0, 6), SHARES), max_size=15)
INCREMENTS = st.lists(st.floats(0.001, 50), min_size=100, max_size=100)


@settings(max_examples=40, deadline=None)
@given(plan=STEPS, increments=INCREMENTS, edges=st.tuples(st.floats(1, 9), st.floats(1, 9)))
def test_over_any_window_the_parts_sum_to_the_sensor(
    plan: list[tuple[float, float, list[StepShare]]], increments: list[float], edges: tuple[float, float]
) -> None:
    curve = rising(increments)
    span = curve.coverage
    assert span is not None
    start, end = (Seconds(min(max(edge, span[0]), span[1])) for edge in sorted(edges))
    steps = [step(at, at + length, *shares) for at, length, shares in plan]
    found = attribute(curve.nanojoules, steps, start, end, ComputeWeight())
    assert found.total == curve.nanojoules(end) - curve.nanojoules(start)
    assert found.idle >= 0
    assert found.overhead >= 0
    assert all(amount >= 0 for amount in found.requests.values())
    assert found.split().total == pytest.approx(curve.window(start, end).joules)
