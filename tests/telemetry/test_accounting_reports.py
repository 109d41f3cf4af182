"""Public bug reports of other tools that concern who is charged for what: each is a test of ours by its name.

Reports that concern readings themselves are with the collectors' and the curve's tests.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from energyopt.core.clock import FakeClock
from energyopt.core.footprint import boundary, describe_boundary
from energyopt.core.records import Phase, StepRecord, StepShare
from energyopt.core.results import EnergyReading, RunResult, Scope, Source, total_energy
from energyopt.core.units import Joules, Seconds, Tokens, Watts
from telemetry.curve import EnergyCurve
from telemetry.ledger import Ledger
from telemetry.meter import Meter
from telemetry.owners import NOBODY
from telemetry.page import Page, parse_page
from telemetry.ports import Sample, SensorId
from telemetry.watch import view

WATTS = 300.0


def curve(device: str = "GPU-1", *, watts: float = WATTS) -> EnergyCurve:
    """20 s at one power, from a counter that has counted for long."""
    made = EnergyCurve(SensorId(device, Scope.GPU), Source.COUNTER, max_power=Watts(700.0))
    for tick in range(201):
        made.add(Sample(at=Seconds(tick / 10), counter=Joules(5e6 + watts * tick / 10), power=Watts(watts)))
    return made


def step(start: float, end: float, *requests: str, devices: tuple[str, ...] = ("GPU-1",)) -> StepRecord:
    shares = tuple(StepShare(request, Phase.DECODE, 1, 100) for request in requests)
    return StepRecord(Seconds(start), Seconds(end), devices, shares)


def joules_of(ledger: Ledger, request: str) -> float:
    found = ledger.request_energy(request)
    assert found is not None
    return found.joules


def test_tgi_3315_a_request_is_not_charged_the_whole_gpu_for_its_time() -> None:
    """vllm#10748 asked for measured energy of single requests; TGI#3315 gives each of a batch the whole GPU."""
    ledger = Ledger([curve()])
    batch = [f"r{number}" for number in range(8)]
    ledger.record(step(1, 5, *batch))
    ledger.settle()
    assert [joules_of(ledger, request) for request in batch] == pytest.approx([WATTS * 4 / 8] * 8)


def test_dcgm_exporter_257_353_two_engines_on_one_gpu_are_charged_it_once() -> None:
    """MIG slices that each show the parent's power: their sum is that of several GPUs."""
    ledger = Ledger([curve()])
    ledger.record(step(1, 5, "slice-0"))
    ledger.record(step(3, 7, "slice-1"))
    ledger.settle()
    assert joules_of(ledger, "slice-0") + joules_of(ledger, "slice-1") == pytest.approx(WATTS * 6)


def test_codecarbon_567_gpus_that_ran_nothing_of_ours_are_not_counted() -> None:
    ledger = Ledger([curve("GPU-1"), curve("GPU-2", watts=500.0)])
    ledger.record(step(1, 3, "a", devices=("GPU-1",)))
    ledger.record(step(1, 3, "b", devices=("GPU-2",)))
    ledger.settle()
    assert joules_of(ledger, "a") == pytest.approx(600.0)
    assert joules_of(ledger, "b") == pytest.approx(1000.0)


def test_aiconfigurator_1534_pynvml_28_a_step_is_matched_by_uuid_not_by_index() -> None:
    ledger = Ledger([curve("GPU-aaaa"), curve("GPU-bbbb", watts=500.0)])
    ledger.record(step(1, 2, "a", devices=("GPU-bbbb",)))
    ledger.record(step(1, 2, "b", devices=("0",)))  # an index names no sensor
    ledger.settle()
    assert joules_of(ledger, "a") == pytest.approx(500.0)
    assert ledger.request_energy("b") is None


def test_aitra_meter_89_90_two_models_on_a_node_are_not_each_charged_the_node() -> None:
    first, second = Ledger([curve("GPU-1")]), Ledger([curve("GPU-2", watts=500.0)])
    for ledger in (first, second):  # both processes see the steps of their own engine only
        ledger.record(step(1, 5, "a", devices=("GPU-1",) if ledger is first else ("GPU-2",)))
        ledger.settle()
    assert joules_of(first, "a") + joules_of(second, "a") == pytest.approx(4 * (WATTS + 500.0))


def test_kepler_897_no_part_exceeds_the_whole() -> None:
    """Petajoules for some pods: a counter that jumps by 5 MJ between two samples is not energy of a request."""
    sensor = EnergyCurve(SensorId("GPU-1", Scope.GPU), Source.COUNTER, max_power=Watts(700.0))
    for tick in range(201):
        glitch = 5e15 if tick in (60, 61) else 0.0
        sensor.add(Sample(at=Seconds(tick / 10), counter=Joules(glitch + WATTS * tick / 10), power=Watts(WATTS)))
    ledger = Ledger([sensor])
    ledger.record(step(1, 15, "a"))
    ledger.settle()
    assert joules_of(ledger, "a") == pytest.approx(WATTS * 14, rel=0.05)


def test_sglang_27567_what_an_idle_context_draws_is_shown_and_no_requests() -> None:
    ledger = Ledger([curve(watts=60.0)])
    ledger.record(step(8, 9, "a"))
    ledger.settle()
    assert joules_of(ledger, "a") == pytest.approx(60.0)
    assert ledger.book().idle[NOBODY] / 1e9 == pytest.approx(60.0 * (8 - 0.1))


def test_zeus_metric_energy_between_two_windows_is_not_lost() -> None:
    """Its counter opens a window after it has pushed the last: what was drawn meanwhile is in neither."""
    sensor = curve()
    cuts = [0.1, 3.3, 3.3000001, 7.77, 20.0]
    windows = [sensor.nanojoules(Seconds(b)) - sensor.nanojoules(Seconds(a)) for a, b in pairwise(cuts)]
    assert sum(windows) == sensor.nanojoules(Seconds(20.0)) - sensor.nanojoules(Seconds(0.1))


def test_codecarbon_117_a_window_is_the_counters_difference_not_one_short_sample() -> None:
    """100 x too low: 10 ms of power taken for a second. Here power is read as 3 W, the counter knows better."""
    sensor = EnergyCurve(SensorId("GPU-1", Scope.GPU), Source.COUNTER, max_power=Watts(700.0))
    for tick in range(101):
        sensor.add(Sample(at=Seconds(tick / 10), counter=Joules(WATTS * tick / 10), power=Watts(3.0)))
    reading = sensor.window(Seconds(1), Seconds(6))
    assert reading.source is Source.COUNTER
    assert reading.joules == pytest.approx(WATTS * 5, abs=reading.error)


def test_srt_slurm_481_a_rail_is_not_called_the_whole_socket() -> None:
    """The CPU rail taken for the socket's total: every figure names what it covers, a sum names all of it."""
    assert boundary([Scope.CPU_PACKAGE], None) == "cpu"
    assert boundary([Scope.CPU_PACKAGE, Scope.GPU], None) == "gpu+cpu"
    assert describe_boundary("cpu", idle=True) == "CPU packages; idle time included"


def test_mblt_model_zoo_71_tokens_per_joule_counts_the_tokens_of_all_requests() -> None:
    """The batch's joules over one sequence's tokens."""
    reading = EnergyReading(
        device="GPU-1",
        joules=Joules(100.0),
        error=Joules(1.0),
        scope=Scope.GPU,
        source=Source.COUNTER,
        window=Seconds(1.0),
    )
    batch, tokens = 16, 25
    run = RunResult(
        window=Seconds(1.0),
        requests=batch,
        failed_requests=0,
        prompt_tokens=Tokens(0),
        cached_tokens=Tokens(0),
        output_tokens=Tokens(batch * tokens),
        energy=total_energy([reading]),
        power_valid=True,
    )
    assert run.tokens_per_joule == pytest.approx(4.0)
    pages = [_page(at, tokens=at * batch * tokens, joules=100.0 * at) for at in (0, 1)]
    assert view(pages[0], pages[0], pages[1]).tokens_per_joule == pytest.approx(4.0)


def test_d_inference_382_tokens_and_joules_of_a_ratio_are_of_the_same_window() -> None:
    """A tick was booked to loading while its decode tokens were counted: both come from the same two pages here."""
    loaded = _page(100, tokens=0, joules=50_000.0)  # the model was loaded at some expense before the first token
    first, second = _page(110, tokens=1000, joules=51_000.0), _page(120, tokens=3000, joules=52_000.0)
    assert view(loaded, loaded, first).tokens_per_joule == pytest.approx(1.0)
    assert view(loaded, first, second).tokens_per_joule == pytest.approx(2.0)
    silent = _page(130, tokens=4000, joules=None)
    assert view(loaded, second, silent).tokens_per_joule is None


def test_stormlog_226_a_sum_over_estimates_and_counters_says_so() -> None:
    """An estimate that is added to a measurement must not pass for one."""
    meter = Ledger([curve("GPU-1"), _estimated("cpu:0")])
    meter.record(step(1, 3, "a", devices=("GPU-1", "cpu:0")))
    meter.settle()
    found = meter.request_energy("a")
    assert found is not None
    assert found.label == "counter+estimated"
    assert found.error > 0.5 * 50.0 * 2 - 1


def test_codecarbon_1316_without_a_counter_energy_is_unknown_not_zero() -> None:
    meter = Meter((), FakeClock())
    meter.record(step(1, 2, "a"))
    assert meter.request_energy("a") is None
    assert meter.totals() is None


def _estimated(device: str) -> EnergyCurve:
    made = EnergyCurve(SensorId(device, Scope.CPU_PACKAGE), Source.ESTIMATED, relative_error=0.5)
    for tick in range(201):
        made.add(Sample(at=Seconds(tick / 10), counter=Joules(50.0 * tick / 10), power=Watts(50.0)))
    return made


def _page(at: float, *, tokens: float, joules: float | None) -> Page:
    lines = [f'energyopt_tokens_total{{model="m",kind="output"}} {tokens}']
    if joules is not None:
        lines.append(f'energyopt_gpu_energy_joules_total{{gpu_uuid="GPU-1",scope="gpu",source="counter"}} {joules}')
    return parse_page("\n".join(lines) + "\n", Seconds(at))
