"""The governor's policy and what it learns: no clock, no device."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energyopt.core.errors import ConfigError
from energyopt.core.records import FinishReason, Phase, RequestRecord, StepRecord, StepShare
from energyopt.core.slo import Slo
from energyopt.core.units import Seconds
from telemetry.control.governor import Governor, Measure, Reason, Rules, Situation
from telemetry.control.speed import SpeedModel
from telemetry.control.window import Latency, LatencyWindow, weighted_quantile

TTFT, ITL = Slo.parse("ttft:p90<500ms"), Slo.parse("itl:p99<50ms")
TOP, FLOOR = 2e9, 1e9
RULES = Rules(FLOOR, TOP, settle=Seconds(10.0))
ROOMY, TIGHT, BAD, DEAD = 0.020, 0.046, 0.055, 0.040


def itl(estimate: float | None, samples: int = 500) -> tuple[Measure, ...]:
    return (Measure(TTFT, None if estimate is None else 0.1, samples), Measure(ITL, estimate, samples))


def at(time: float, level: float, estimate: float | None, *, oldest: float = 0.0, samples: int = 500) -> Situation:
    pace = None if estimate is None else Seconds(estimate)
    return Situation(Seconds(time), level, itl(estimate, samples), pace, Seconds(oldest))


def lowered(governor: Governor, time: float = 0.0, until: float = FLOOR) -> tuple[float, float]:
    """Go down in calm to ``until``; the level and the time then."""
    level = TOP
    while level > until:
        level = governor.decide(at(time, level, ROOMY)).level
        time += 10.0
    return level, time


class TestGoesDown:
    def test_in_small_steps_one_in_each_settle(self) -> None:
        governor, level, levels = Governor(RULES), TOP, []
        for tick in range(400):
            level = governor.decide(at(tick * 0.25, level, ROOMY)).level
            levels.append(level)
        changes = [index * 0.25 for index in range(1, 400) if levels[index] != levels[index - 1]]
        assert all(later - earlier >= 10.0 for earlier, later in pairwise(changes))
        steps = [1 - later / earlier for earlier, later in pairwise(levels)]
        assert 0 < max(steps) <= RULES.largest_step + 1e-9

    def test_to_the_floor_and_no_further(self) -> None:
        governor = Governor(RULES)
        level, time = lowered(governor)
        assert level == FLOOR
        assert governor.decide(at(time + 10, level, ROOMY)).reason is Reason.FLOOR

    @pytest.mark.parametrize(
        ("estimate", "samples", "reason"),
        [(DEAD, 500, Reason.HOLD), (ROOMY, 5, Reason.FEW_SAMPLES), (None, 0, Reason.FEW_SAMPLES)],
    )
    def test_not_without_room_nor_without_samples(self, estimate: float | None, samples: int, reason: Reason) -> None:
        decision = Governor(RULES).decide(at(100.0, TOP, estimate, samples=samples))
        assert (decision.level, decision.reason) == (TOP, reason)

    def test_only_as_far_as_the_learned_slowdown_allows(self) -> None:
        """All of the time goes with 1 / level, and 30 of 50 ms are used: 18.5% of the target is to stay free."""
        governor = Governor(Rules(FLOOR, TOP, settle=Seconds(10.0), largest_step=0.5))
        decision = governor.decide(at(0.0, TOP, 0.030))
        assert decision.level == pytest.approx(TOP * 0.030 / (0.050 * (1 - 0.185)), rel=0.02)


class TestGoesUp:
    def test_to_the_top_at_once_when_an_objective_is_violated(self) -> None:
        governor = Governor(RULES)
        level, time = lowered(governor)
        decision = governor.decide(at(time + 0.25, level, BAD))
        assert (decision.level, decision.reason) == (TOP, Reason.VIOLATED)
        assert decision.words == "itl:p99<50ms: 55 ms of 50 ms, to the top at once"

    def test_as_far_as_needed_when_little_is_left(self) -> None:
        governor = Governor(RULES)
        level, time = lowered(governor)
        decision = governor.decide(at(time, level, TIGHT))
        assert decision.reason is Reason.TIGHT
        assert level < decision.level < TOP
        again = governor.decide(at(time + 0.25, decision.level, TIGHT))
        assert (again.level, again.reason) == (decision.level, Reason.SETTLING), "old samples are still in the window"

    def test_and_avoids_the_level_that_failed_for_a_while(self) -> None:
        governor = Governor(RULES)
        level, time = lowered(governor, until=1.5e9)
        failed = level
        level = governor.decide(at(time, level, BAD)).level
        lowest = TOP
        for tick in range(1, 12):
            decision = governor.decide(at(time + 10.0 * tick, level, ROOMY))
            level = decision.level
            lowest = min(lowest, level)
        assert failed < lowest <= failed * (1 + RULES.largest_step) * 1.02
        assert decision.reason is Reason.BACKED_OFF
        later = governor.decide(at(time + RULES.memory + 20.0, level, ROOMY))
        assert later.level < level

    def test_a_violation_at_the_top_does_not_bar_the_way_down(self) -> None:
        governor = Governor(RULES)
        assert governor.decide(at(0.0, TOP, BAD)).level == TOP
        assert governor.decide(at(20.0, TOP, ROOMY)).reason is Reason.BACKED_OFF
        assert governor.decide(at(31.0, TOP, ROOMY)).reason is Reason.ROOM


class TestBursts:
    def test_a_waiting_request_calls_for_the_top_and_then_everything_is_as_before(self) -> None:
        governor = Governor(RULES)
        level, time = lowered(governor, until=1.2e9)
        burst = governor.decide(at(time, level, ROOMY, oldest=0.3))
        assert (burst.level, burst.reason) == (TOP, Reason.BURST)
        still = governor.decide(at(time + 0.25, TOP, ROOMY, oldest=0.1))
        assert (still.level, still.reason) == (TOP, Reason.BURST)
        over = governor.decide(at(time + 0.5, TOP, ROOMY, oldest=0.0))
        assert (over.level, over.reason) == (level, Reason.RESUMED)

    def test_at_the_top_there_is_nothing_to_do(self) -> None:
        assert Governor(RULES).decide(at(0.0, TOP, ROOMY, oldest=5.0)).reason is not Reason.BURST

    def test_without_a_ttft_objective_nothing_is_known_of_first_tokens(self) -> None:
        now = Situation(Seconds(0.0), 1.5e9, (Measure(ITL, ROOMY, 500),), Seconds(ROOMY), Seconds(60.0))
        assert Governor(RULES).decide(now).reason is not Reason.BURST


@given(
    st.lists(
        st.tuples(
            st.floats(0.01, 30.0),
            st.none() | st.floats(1e-4, 1.0) | st.just(math.inf),
            st.integers(0, 1000),
            st.floats(0.0, 5.0),
        ),
        max_size=60,
    )
)
def test_whatever_is_measured_the_level_stays_in_its_bounds_and_a_violation_ends_at_the_top(
    history: list[tuple[float, float | None, int, float]],
) -> None:
    governor, level, time = Governor(RULES), TOP, 0.0
    for wait, estimate, samples, oldest in history:
        time += wait
        now = Situation(Seconds(time), level, itl(estimate, samples), None, Seconds(oldest))
        decision = governor.decide(now)
        assert FLOOR <= decision.level <= TOP
        assert decision.words
        burst = decision.reason in (Reason.BURST, Reason.RESUMED)
        if estimate is not None and estimate > ITL.target and not burst:
            assert decision.level == TOP
        if decision.level < level and not burst:
            assert decision.reason is Reason.ROOM
            assert estimate is not None
            assert estimate < ITL.target * (1 - RULES.lower_above)
        level = decision.level


class TestSpeedModel:
    @given(st.floats(0.0, 1.0), st.floats(0.001, 1.0), st.floats(0.5, 0.7))
    def test_finds_what_there_is(self, fixed: float, moving: float, lowest: float) -> None:
        model = SpeedModel(TOP)
        for share in (1.0, lowest, (1 + lowest) / 2) * 30:
            model.observe(share * TOP, Seconds(fixed + moving / share))
        for share in (1.0, 0.8, 0.6):
            truth = (fixed + moving / share) / (fixed + moving)
            assert model.slowdown(TOP, share * TOP) == pytest.approx(truth, rel=0.1)

    def test_before_two_levels_are_seen_all_time_is_believed_to_go_with_the_level(self) -> None:
        model = SpeedModel(TOP)
        assert model.slowdown(TOP, TOP / 2) == 2.0
        for _ in range(100):
            model.observe(TOP, Seconds(0.02))
        assert model.slowdown(TOP, TOP / 2) == pytest.approx(2.0)

    def test_what_changed_is_learned_anew(self) -> None:
        model = SpeedModel(TOP)
        for fixed in (0.010, 0.030):
            for share in (0.6, 0.8, 1.0) * 60:
                model.observe(share * TOP, Seconds(fixed + 0.01 / share))
        assert model.fit == pytest.approx((0.030, 0.010), rel=0.1)

    @given(st.lists(st.tuples(st.floats(0.3, 1.0), st.floats(1e-4, 10.0)), max_size=30), st.floats(0.3, 1.0))
    def test_a_lower_level_is_never_promised_to_be_faster(self, seen: list[tuple[float, float]], share: float) -> None:
        model = SpeedModel(TOP)
        for level, time in seen:
            model.observe(level * TOP, Seconds(time))
        assert model.slowdown(TOP, share * TOP) >= 1 - 1e-9


class TestWindow:
    def test_gaps_are_of_requests_that_had_a_token_before(self) -> None:
        window = LatencyWindow((ITL,), Seconds(10.0))
        steps = [
            (0.00, 0.02, {"a": Phase.PREFILL}),
            (0.02, 0.05, {"a": Phase.DECODE, "b": Phase.PREFILL}),
            (0.05, 0.06, {"a": Phase.DECODE}),  # b is put back for a step
            (0.06, 0.10, {"a": Phase.DECODE, "b": Phase.DECODE}),
        ]
        for start, end, phases in steps:
            shares = tuple(StepShare(name, phase, 1, 1) for name, phase in phases.items())
            window.step(StepRecord(Seconds(start), Seconds(end), ("GPU-1",), shares))
        (measure,) = window.measures(Seconds(0.1))
        assert measure.samples == 4
        assert measure.estimate == pytest.approx(0.05), "the gap of the one that was put back"
        assert window.pace(Seconds(0.1)) == pytest.approx((0.03 + 0.01 + 0.04 + 0.05) / 4)

    def test_old_samples_leave(self) -> None:
        window = LatencyWindow((TTFT,), Seconds(10.0))
        window.arrived("a", Seconds(0.0))
        window.first_token("a", Seconds(0.3))
        assert window.measures(Seconds(10.2))[0].estimate == pytest.approx(0.3)
        assert window.measures(Seconds(10.4))[0] == Measure(TTFT, None, 0)

    def test_who_waits_too_long_counts_before_the_first_token_comes(self) -> None:
        window = LatencyWindow((TTFT,), Seconds(10.0))
        window.arrived("a", Seconds(0.0))
        assert window.measures(Seconds(0.4))[0].estimate is None
        assert window.measures(Seconds(0.7))[0].estimate == pytest.approx(0.7)
        assert window.oldest(Seconds(0.7)) == pytest.approx(0.7)
        window.left("a", Seconds(1.0), failed=False)
        assert window.measures(Seconds(1.0))[0].estimate is None
        window.arrived("b", Seconds(1.0))
        window.left("b", Seconds(1.1), failed=True)
        assert window.measures(Seconds(1.1))[0].estimate == math.inf
        assert window.oldest(Seconds(1.1)) == 0.0

    def test_whole_requests_come_at_their_end_and_failed_ones_are_infinite(self) -> None:
        slos = (Slo.parse("e2e:p50<2s"), Slo.parse("tpot:mean<1s"), Slo.parse("interactivity:p50>10"))
        window = LatencyWindow(slos, Seconds(10.0))
        times = (Seconds(0.5), Seconds(0.7), Seconds(0.9))
        window.request(RequestRecord("a", Seconds(0.0), Seconds(1.0), 1, 0, 3, FinishReason.STOP, times))
        e2e, tpot, interactivity = window.measures(Seconds(1.0))
        assert e2e.estimate == 1.0
        assert tpot.estimate == pytest.approx(0.2)
        assert interactivity == Measure(slos[2], None, 0)
        window.request(RequestRecord("b", Seconds(0.0), Seconds(1.0), 1, 0, 0, FinishReason.ERROR, ()))
        assert window.measures(Seconds(1.0))[1].estimate == math.inf

    def test_interactivity_is_one_over_the_gap(self) -> None:
        slo = Slo.parse("interactivity:p90>20")
        window = LatencyWindow((slo,), Seconds(10.0))
        for end in (0.00, 0.04, 0.08):
            share = StepShare("a", Phase.DECODE, 1, 1)
            window.step(StepRecord(Seconds(end - 0.04), Seconds(end), ("GPU-1",), (share,)))
        (measure,) = window.measures(Seconds(0.1))
        assert measure.estimate == pytest.approx(25.0)
        assert measure.margin == pytest.approx(0.2)

    def test_a_goodput_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="goodput"):
            LatencyWindow((Slo.parse("goodput>2"),), Seconds(10.0))

    @given(st.lists(st.tuples(st.floats(0.0, 9.0), st.integers(1, 5)), max_size=30), st.floats(0.01, 1.0))
    def test_the_weighted_quantile_is_that_of_the_samples_one_by_one(
        self, pairs: list[tuple[float, int]], share: float
    ) -> None:
        entries = [Latency(Seconds(0.0), value, count) for value, count in pairs]
        singly = sorted(value for value, count in pairs for _ in range(count))
        expected = singly[max(0, math.ceil(share * len(singly) - 1e-9) - 1)] if singly else None
        assert weighted_quantile(entries, share) == expected
