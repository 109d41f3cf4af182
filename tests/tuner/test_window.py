"""What belongs to a window, and what is said about it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energyopt.core.errors import SensorError
from energyopt.core.records import FinishReason, Phase, RequestRecord, StepRecord, StepShare
from energyopt.core.results import EnergyReading, EnergySplit, Scope, Source
from energyopt.core.slo import Slo, SloMetric
from energyopt.core.units import Joules, Seconds
from tuner.counting import Window, count_output, count_prompts, ended_in, overdue_in, samples_in
from tuner.window import audit_work, judge_in, measure_power, report, summarize_latencies_in

S = Seconds


class TableMeter:
    """A meter that draws ``watts`` on each device; ``covered`` is the share of the window it answers for."""

    def __init__(
        self, devices: Sequence[str] = ("gpu-0",), watts: float = 100.0, covered: float = 1.0, error: float = 1.0
    ) -> None:
        self._devices, self._watts, self._covered, self._error = devices, watts, covered, error
        self.asked: list[StepRecord] = []

    @property
    def reasons(self) -> tuple[str, ...]:
        return ("DRAM is not measured here",)

    def readings(self, start: Seconds, end: Seconds) -> tuple[EnergyReading, ...]:
        length = (end - start) * self._covered
        return tuple(
            EnergyReading(
                device=device,
                joules=Joules(self._watts * length),
                error=Joules(self._error),
                scope=Scope.GPU,
                source=Source.COUNTER,
                window=S(length),
            )
            for device in self._devices
        )

    def split(self, steps: Sequence[StepRecord], start: Seconds, end: Seconds) -> EnergySplit | None:
        self.asked = list(steps)
        joules = self._watts * (end - start) * len(self._devices)
        return EnergySplit(prefill=Joules(joules), decode=Joules(0), idle=Joules(0), overhead=Joules(0))


class BrokenMeter(TableMeter):
    def readings(self, start: Seconds, end: Seconds) -> tuple[EnergyReading, ...]:
        raise SensorError("gpu-0 lost samples")


def request(
    name: str,
    arrival: float,
    times: Sequence[float],
    *,
    prompt: int = 10,
    end: float | None = None,
    failed: bool = False,
) -> RequestRecord:
    last = end if end is not None else times[-1]
    reason = FinishReason.ERROR if failed else FinishReason.LENGTH
    return RequestRecord(name, S(arrival), S(last), prompt, 0, len(times), reason, tuple(map(S, times)))


def step(end: float, *shares: StepShare, device: str = "gpu-0", took: float = 0.5) -> StepRecord:
    return StepRecord(S(end - took), S(end), (device,), shares)


def prefill(name: str, context: int, computed: int, **cached: int) -> StepShare:
    return StepShare(name, Phase.PREFILL, computed, context, cached)


WINDOW = Window(S(10.0), S(20.0))
BEFORE = request("before", 5, [6, 9, 11, 12])  # first token before, ends inside
INSIDE = request("inside", 11, [13, 14, 16])
ACROSS = replace(request("across", 15, [18, 19, 21], end=22), finish_reason=FinishReason.ABORT)
AFTER = request("after", 19, [23, 24])
ALL = [BEFORE, INSIDE, ACROSS, AFTER]


def test_a_window_needs_a_length() -> None:
    with pytest.raises(ValueError, match="no length"):
        Window(S(1.0), S(1.0))


def test_tokens_and_requests_belong_to_their_instant() -> None:
    assert count_output(WINDOW, ALL) == 2 + 3 + 2
    assert ended_in(WINDOW, ALL) == [BEFORE, INSIDE]


def test_each_latency_belongs_to_its_own_instant() -> None:
    def samples(metric: SloMetric) -> list[float]:
        return sorted(Slo.samples_of(metric, samples_in(WINDOW, metric, ALL)))

    assert samples(SloMetric.TTFT) == [2, 3]  # inside and across
    assert samples(SloMetric.ITL) == [1, 1, 1, 2, 2]  # 9-11, 11-12, 13-14, 14-16, 18-19
    assert samples(SloMetric.E2E) == [5, 7]
    assert samples(SloMetric.TPOT) == [1.5, 2]


def test_an_abort_after_the_window_is_no_failure_of_it() -> None:
    result = report(WINDOW, ALL, [], TableMeter(), [Slo.parse("ttft:p99<4s"), Slo.parse("e2e:p99<8s")])
    assert (result.requests, result.failed_requests, result.output_tokens) == (2, 0, 7)
    assert result.feasible


def test_a_failure_inside_the_window_is_infinite_for_every_latency() -> None:
    failed = request("failed", 11, [12], end=13, failed=True)
    result = report(WINDOW, [*ALL, failed], [], TableMeter(), [Slo.parse("ttft:p99<4s")])
    assert (result.requests, result.failed_requests) == (3, 1)
    assert {name: summary.p99 for name, summary in result.latencies.items()} == dict.fromkeys(
        ("ttft", "itl", "tpot", "e2e"), math.inf
    )
    assert result.verdicts[0].state == "violated"
    assert not result.feasible


def test_verdicts_are_about_the_window_only() -> None:
    slow = request("slow", 0, [9.5, 9.6], end=9.6)
    slos = [Slo.parse("ttft:p50<2.5s"), Slo.parse("itl:p99<2.5s"), Slo.parse("e2e:p99<6s"), Slo.parse("goodput>0.05")]
    ttft, itl, e2e, goodput = judge_in(WINDOW, slos, [*ALL, slow])
    assert (ttft.estimate, ttft.samples) == (2, 2)
    assert (itl.estimate, itl.samples) == (2, 5)
    assert (e2e.estimate, e2e.samples) == (7, 2)
    assert goodput.samples == 2
    assert goodput.estimate == pytest.approx(0.1)  # "inside" only, in 10 s


def test_an_engine_that_stalls_has_kept_nothing() -> None:
    """Requests that wait when the window ends have ended nowhere; that they wait too long is known all the same."""
    stalled = [request(f"s{n}", 12, [12.1, 12.2, 25], end=26) for n in range(6)]  # no token from 12.2 on
    unheard = [request(f"u{n}", 14, [27], end=28) for n in range(6)]
    texts = ("ttft:p90<2s", "itl:p90<3s", "interactivity:p90>0.3", "e2e:p90<5s")
    for verdict in judge_in(WINDOW, [Slo.parse(text) for text in texts], [*stalled, *unheard]):
        assert verdict.state == "violated", verdict
    (ttft,) = judge_in(WINDOW, [Slo.parse("ttft:p90<10s")], [*stalled, *unheard])
    assert ttft.samples == 6, "who may still wait is no sample yet"


@given(st.floats(0.1, 30), st.floats(0, 25), st.floats(0.1, 20))
def test_a_wait_counts_once_it_is_too_long_and_as_what_it_is_by_then(
    target: float, arrival: float, first: float
) -> None:
    late = request("r", arrival, [arrival + first], end=max(arrival + first, 40.0))
    found = overdue_in(WINDOW, SloMetric.TTFT, S(target), [late])
    waited = 20.0 - arrival
    assert bool(found) == (0 < waited <= first and waited > target)
    assert [one.ttft for one in found] == [waited] * len(found)
    assert all(one.ttft is not None and target < one.ttft <= first for one in found), "never more than the truth"


def test_without_samples_nothing_is_known() -> None:
    result = report(WINDOW, [], [], TableMeter(), [Slo.parse("ttft:p90<1s")])
    assert result.latencies == {}
    assert result.verdicts[0].state == "unknown"
    assert not result.feasible
    assert result.hit_rate is None


def test_prompt_tokens_belong_to_the_step_that_took_them_in() -> None:
    steps = [
        step(9, prefill("a", 4, 2, device=4)),  # 4 hits and 2 tokens before the window
        step(11, prefill("a", 6, 4), StepShare("z", Phase.DECODE, 1, 50)),
        step(12, prefill("b", 7, 3, device=4, host=3)),
    ]
    count = count_prompts(WINDOW, [request("a", 8, [11]), request("b", 11, [12])], steps)
    assert (count.tokens, count.cached, count.by_tier) == (14, 7, {"device": 4, "host": 3})


def test_a_preempted_prompt_counts_once() -> None:
    """Preempted with 3 of its output tokens, it finds 6 tokens in the cache and computes 4 + 3 again."""
    steps = [
        step(11, prefill("a", 2, 8, device=2)),
        *(step(12 + i, StepShare("a", Phase.DECODE, 1, 10 + i)) for i in range(2)),
        step(15, prefill("a", 6, 7, device=6)),
    ]
    count = count_prompts(WINDOW, [request("a", 10, [11, 12, 13, 15])], steps)
    assert (count.tokens, count.by_tier) == (10, {"device": 2})


def test_a_prompt_preempted_half_way_counts_its_new_half() -> None:
    steps = [
        step(11, prefill("a", 0, 3)),
        step(12, prefill("a", 8, 2, device=5, host=3)),  # now somebody else's blocks cover 8 of the 10
    ]
    count = count_prompts(WINDOW, [request("a", 10, [12])], steps)
    assert (count.tokens, count.by_tier) == (10, {"device": 2, "host": 3})


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[RequestRecord], list[StepRecord]]:
    """Requests whose prompts come in over chunks, some preempted and started again, some failed."""
    requests, steps = [], []
    for index in range(draw(st.integers(0, 6))):
        name, prompt = f"r{index}", draw(st.integers(1, 40))
        arrival = at = draw(st.floats(0, 20))
        for _ in range(draw(st.integers(1, 2))):  # admissions
            position = hits = draw(st.integers(0, prompt - 1))
            host = draw(st.integers(0, hits))
            cached = {tier: n for tier, n in (("device", hits - host), ("host", host)) if n}
            while position < prompt:
                chunk = draw(st.integers(1, prompt - position))
                at += draw(st.floats(0.01, 5))
                steps.append(step(at, StepShare(name, Phase.PREFILL, chunk, position, cached), took=0.01))
                position, cached = position + chunk, {}
        gaps = draw(st.lists(st.floats(0, 5), max_size=8))
        times = [at + sum(gaps[: i + 1]) for i in range(len(gaps))] or [at]
        requests.append(request(name, arrival, times, prompt=prompt, failed=draw(st.booleans())))
    return requests, sorted(steps, key=lambda record: record.end)


@given(histories(), st.lists(st.floats(0.1, 60), min_size=1, max_size=6, unique=True))
def test_the_counts_of_adjacent_windows_add_up(
    history: tuple[list[RequestRecord], list[StepRecord]], cuts: list[float]
) -> None:
    requests, steps = history
    edges = [0.0, *sorted(cuts), 1000.0]
    parts = [Window(S(a), S(b)) for a, b in pairwise(edges)]
    whole = Window(S(0.0), S(1000.0))
    prompts = [count_prompts(part, requests, steps) for part in parts]
    tiers: Counter[str] = Counter()
    for count in prompts:
        tiers.update(count.by_tier)
    assert sum(count_output(part, requests) for part in parts) == count_output(whole, requests)
    assert count_output(whole, requests) == sum(r.output_tokens for r in requests)
    assert sum(count.tokens for count in prompts) == sum(r.prompt_tokens for r in requests)
    assert dict(tiers) == count_prompts(whole, requests, steps).by_tier
    assert all(count.cached <= count.tokens for count in prompts)
    assert sum(len(ended_in(part, requests)) for part in parts) == len(requests)
    fine = [r for r in requests if not r.failed]
    for metric in (SloMetric.TTFT, SloMetric.ITL, SloMetric.TPOT, SloMetric.E2E):
        found = [x for part in parts for x in Slo.samples_of(metric, samples_in(part, metric, fine))]
        assert sorted(found) == pytest.approx(sorted(Slo.samples_of(metric, fine)))


def busy(device: str = "gpu-0") -> list[StepRecord]:
    return [step(at, device=device) for at in (9, 10.2, 15, 20.2, 25)]


def test_energy_is_that_of_the_window() -> None:
    meter = TableMeter()
    many = [request(f"r{i}", 11, [12 + i / 10] * 8) for i in range(10)]
    result = report(WINDOW, many, busy(), meter, [], peak_memory_bytes=7)
    assert result.power_valid
    assert result.power_reasons == ("DRAM is not measured here",)
    assert (result.joules, result.output_tokens) == (Joules(1000), 80)
    assert result.tokens_per_joule == 0.08
    assert result.split is not None
    assert result.split.total == Joules(1000)
    assert [record.end for record in meter.asked] == [10.2, 15, 20.2]  # those that touch the window
    assert result.peak_memory_bytes == 7


@pytest.mark.parametrize(
    ("meter", "code"),
    [
        (TableMeter(devices=()), "no_meter"),
        (TableMeter(covered=0.9), "not_bracketed"),
        (TableMeter(watts=0.01), "uncertain"),
        (BrokenMeter(), "gap: gpu-0 lost samples"),
        (TableMeter(devices=("gpu-1",)), None),  # sockets are not named by steps
    ],
)
def test_a_meter_that_does_not_cover_the_window_is_not_believed(meter: TableMeter, code: str | None) -> None:
    faults = measure_power(WINDOW, busy(), meter).faults
    assert [fault.split(":")[0] for fault in faults] == ([code.split(":")[0]] if code else [])
    assert code is None or faults[0].startswith(code)
    many = [request(f"r{i}", 11, [12] * 8) for i in range(10)]
    result = report(WINDOW, many, busy(), meter, [])
    assert result.power_valid is (code is None)
    assert (result.tokens_per_joule is None) is (code is not None)


def test_one_measured_device_does_not_speak_for_another() -> None:
    both = [*busy(), *busy("gpu-1")]
    assert measure_power(WINDOW, both, TableMeter()).faults == (
        "not_covered: gpu-1 worked in this window and has no reading",
    )
    assert measure_power(WINDOW, both, TableMeter(devices=("gpu-0", "gpu-1"))).faults == ()


def test_too_little_work_is_not_divided_by() -> None:
    assert audit_work(1, 32) == ()
    assert [fault.split(":")[0] for fault in audit_work(0, 31)] == ["no_requests", "too_few_tokens"]


def test_summaries_leave_out_what_has_no_samples() -> None:
    lone = request("lone", 11, [12])
    assert set(summarize_latencies_in(WINDOW, [lone])) == {"ttft", "e2e"}
