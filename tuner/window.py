"""From what happened to what is reported: the RunResult of one steady-state window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from energyopt.core.errors import SensorError
from energyopt.core.records import RequestRecord, StepRecord
from energyopt.core.results import (
    EnergyReading,
    EnergySplit,
    LatencySummary,
    RunResult,
    VerdictRecord,
    judge,
    summarize,
    total_energy,
)
from energyopt.core.slo import Slo, SloMetric
from energyopt.core.units import Tokens

from .counting import Window, count_output, count_prompts, ended_in, overdue_in, samples_in
from .ports import Meter

MIN_OUTPUT_TOKENS = 32
"""Below this many output tokens a ratio with joules says more about the window's edges than about the engine."""
_COVERAGE_SLACK = 0.01
"""A reading may be of a window that differs by this share; more is another window."""


def report(
    window: Window,
    requests: Sequence[RequestRecord],
    steps: Sequence[StepRecord],
    meter: Meter,
    slos: Sequence[Slo],
    *,
    cut_requests: int = 0,
    peak_memory_bytes: int | None = None,
) -> RunResult:
    """The result of one run over its window. Pure but for the meter, which is asked about this window only.

    ``cut_requests`` of the window were refused for the length of their conversation and are not among ``requests``.
    """
    ended = ended_in(window, requests)
    output_tokens = count_output(window, requests)
    prompts = count_prompts(window, requests, steps)
    working = [step for step in steps if step.end > window.start and step.start < window.end]
    power = measure_power(window, working, meter)
    faults = (*power.faults, *audit_work(len(ended), output_tokens))
    return RunResult(
        window=window.length,
        requests=len(ended),
        failed_requests=sum(request.failed for request in ended),
        prompt_tokens=Tokens(prompts.tokens),
        cached_tokens=Tokens(prompts.cached),
        output_tokens=Tokens(output_tokens),
        latencies=summarize_latencies_in(window, requests),
        verdicts=judge_in(window, slos, requests),
        energy=total_energy(power.readings),
        readings=power.readings,
        split=power.split,
        power_valid=not faults,
        power_reasons=(*faults, *meter.reasons),
        hits_by_tier=prompts.by_tier,
        peak_memory_bytes=peak_memory_bytes,
        cut_requests=cut_requests,
    )


def summarize_latencies_in(window: Window, requests: Sequence[RequestRecord]) -> dict[str, LatencySummary]:
    """Summaries of ttft, itl, tpot and e2e over the window; a metric without samples is absent."""
    summaries = {}
    for metric in (SloMetric.TTFT, SloMetric.ITL, SloMetric.TPOT, SloMetric.E2E):
        summary = summarize(Slo.samples_of(metric, samples_in(window, metric, requests)))
        if summary is not None:
            summaries[metric.value] = summary
    return summaries


def judge_in(window: Window, slos: Sequence[Slo], requests: Sequence[RequestRecord]) -> tuple[VerdictRecord, ...]:
    """The verdict on every SLO over the window's samples; goodput is of the requests that ended in it.

    What waits at the end, longer than the objective allows, is a sample too.
    """
    verdicts = []
    for slo, of_ended in zip(slos, judge(slos, ended_in(window, requests), window.length), strict=True):
        if slo.metric is SloMetric.GOODPUT:
            verdicts.append(of_ended)
        else:
            overdue = overdue_in(window, slo.metric, slo.longest, requests)
            verdicts.extend(judge([slo], [*samples_in(window, slo.metric, requests), *overdue], window.length))
    return tuple(verdicts)


@dataclass(frozen=True, slots=True)
class PowerOfWindow:
    """What the meter says about a window, and why that may not be the energy of the work (``faults``, () if it is)."""

    readings: tuple[EnergyReading, ...] = ()
    split: EnergySplit | None = None
    faults: tuple[str, ...] = ()


def measure_power(window: Window, working: Sequence[StepRecord], meter: Meter) -> PowerOfWindow:
    """Ask the meter about the window and audit the answer; ``working`` are the steps that touch the window.

    Each fault starts with a code: ``gap`` (a sensor lost samples), ``no_meter``, ``not_bracketed`` (a sensor did not
    cover the window), ``not_covered`` (a device worked unmeasured beside measured ones), ``uncertain`` (the error is
    as large as the value).
    """
    try:
        readings = meter.readings(window.start, window.end)
        split = meter.split(working, window.start, window.end) if readings else None
    except SensorError as error:
        return PowerOfWindow(faults=(f"gap: {error}",))
    return PowerOfWindow(readings, split, tuple(power_faults(window, working, readings)))


def power_faults(window: Window, working: Sequence[StepRecord], readings: Sequence[EnergyReading]) -> Iterator[str]:
    """Why ``readings`` are not the energy of the window's work, each with a code in front; see ``measure_power``."""
    if not readings:
        yield "no_meter: no sensor measured this window"
    for reading in readings:
        if abs(reading.window - window.length) > _COVERAGE_SLACK * window.length:
            yield f"not_bracketed: {reading.device} covers {reading.window:.3g} of {window.length:.3g} s"
        if reading.error >= reading.joules:
            yield f"uncertain: {reading.device} says {reading.joules:.3g} J with an error of {reading.error:.3g} J"
    measured = {reading.device for reading in readings}
    worked = {device for step in working for device in step.devices}
    if worked & measured:  # otherwise the meter names sockets, not the devices of the steps
        for device in sorted(worked - measured):
            yield f"not_covered: {device} worked in this window and has no reading"


def audit_work(requests: int, output_tokens: int) -> tuple[str, ...]:
    """Why there is too little work to divide joules by: codes ``no_requests`` and ``too_few_tokens``; () if enough."""
    faults = [] if requests else ["no_requests: no request ended in the window"]
    if output_tokens < MIN_OUTPUT_TOKENS:
        faults.append(f"too_few_tokens: {output_tokens} output tokens, at least {MIN_OUTPUT_TOKENS} are needed")
    return tuple(faults)
