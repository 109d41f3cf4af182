"""From a recording to a result: what belongs to the window, what it cost, and whether it may be believed."""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from energyopt.core.errors import SensorError
from energyopt.core.records import RequestRecord, cached_total
from energyopt.core.results import EnergyReading, LatencySummary, RunResult, summarize, total_energy
from energyopt.core.slo import Slo, SloMetric
from energyopt.core.units import Tokens

from ..counting import Window, count_output
from ..ports import Meter
from ..window import audit_work, judge_in, power_faults, summarize_latencies_in
from .ask import Ask, Reply
from .measure import Recording
from .pools import Account, phase_energy, pool_energy, unread
from .prompts import count_asked
from .result import BenchResult, Client, Prefixes, Subject
from .samples import kept, slices_of

MAX_ERROR_SHARE = 0.10
"""A run with more failed requests than this share says nothing about the service."""


def figures(
    recording: Recording,
    subject: Subject,
    slos: Sequence[Slo],
    meter: Meter | None,
    created: datetime,
    *,
    sources: Mapping[str, float] | None = None,
    account: Account | None = None,
    prefill_devices: Collection[str] = (),
    doubts: Sequence[str] = (),
) -> BenchResult:
    """The result of a replay.

    ``sources`` are prompt tokens by source and ``account`` joules by role and phase, as the server's page counted over
    the window; ``prefill_devices`` those of the prefill pool, where there is one; ``doubts`` are further reasons why
    the run is not valid (code: words).
    """
    window = recording.window
    staying = [reply for reply in recording.replies if not reply.left]
    ended = [reply for reply in staying if reply.record.end in window]
    known = [reply for reply in ended if not reply.record.failed]
    counted = all(reply.counted for reply in known)
    run = _run(window, recording, staying, slos, meter, counted=counted)
    faults = [*recording.client.faults, *_faults(run, counted), *doubts]
    good = _goodput(window, slos, [reply.record for reply in ended])
    return BenchResult(
        id=secrets.token_hex(4),
        created=created,
        subject=subject,
        run=run,
        valid=not faults,
        reasons=tuple(faults),
        notes=tuple(_notes(ended, run, prefill_devices)),
        tokens_known=counted,
        goodput=None if good is None else good / window.length,
        good_share=None if good is None or not ended else good / len(ended),
        per_request=_per_request(known),
        prefixes=_prefixes(known, recording.asks, sources),
        client=Client(send_lag=recording.client.send_lag, loop_lag=recording.client.loop_lag, cpu=recording.client.cpu),
        oddities=dict(Counter(odd for reply in ended for odd in reply.oddities)),
        errors=dict(recording.errors),
        left=sum(reply.left and reply.record.end in window for reply in recording.replies),
        cut_sessions=len(recording.cut),
        skipped_idle=recording.skipped,
        samples={name: kept(values) for name, values in _samples(known).items() if values},
        slices=slices_of(window, [reply.record for reply in recording.replies], meter),
        pools=pool_energy(_valid(run), prefill_devices, account),
        phases=phase_energy(account),
    )


def _run(
    window: Window,
    recording: Recording,
    staying: Sequence[Reply],
    slos: Sequence[Slo],
    meter: Meter | None,
    *,
    counted: bool,
) -> RunResult:
    """Tokens of every request, users who left included; latencies and verdicts of those who stayed.

    An output token belongs to its arrival. What still waits when the window ends is a sample of how long it has waited.
    """
    records = [reply.record for reply in staying]
    everyone = [reply.record for reply in recording.replies]
    ended = [record for record in records if record.end in window]
    prompts = count_asked(window, recording.replies)
    output = count_output(window, everyone) + sum(
        one.output_tokens for one in everyone if not one.token_times and one.end in window
    )
    readings, faults = _power(window, meter)
    if counted:
        faults = (*faults, *audit_work(len(ended), output))
    return RunResult(
        window=window.length,
        requests=len(ended),
        failed_requests=sum(record.failed for record in ended),
        prompt_tokens=prompts.tokens,
        cached_tokens=prompts.cached,
        cut_requests=recording.cut_requests,
        output_tokens=Tokens(output),
        latencies=summarize_latencies_in(window, records),
        verdicts=judge_in(window, slos, records),
        energy=total_energy(readings),
        readings=readings,
        power_valid=bool(readings) and not faults,
        power_reasons=(*faults, *(() if meter is None else meter.reasons)),
    )


def _power(window: Window, meter: Meter | None) -> tuple[tuple[EnergyReading, ...], tuple[str, ...]]:
    """Readings of the window and why they are not its energy (code: words)."""
    if meter is None:
        return (), ("no_meter: no energy was asked for",)
    try:
        readings = meter.readings(window.start, window.end)
    except SensorError as error:
        words = str(error)
        return (), (words if words.split(":")[0].isidentifier() else f"gap: {words}",)
    return readings, tuple(power_faults(window, (), readings))


def _faults(run: RunResult, counted: bool) -> list[str]:
    faults = []
    completed = run.requests - run.failed_requests
    if not completed:
        faults.append("no_requests: no request was answered in the window")
    elif run.failed_requests > MAX_ERROR_SHARE * run.requests:
        faults.append(f"too_many_errors: {run.failed_requests} of {run.requests} requests failed")
    if not counted:
        faults.append("no_usage: replies without usage, so tokens are unknown; the server must send stream usage")
    return faults


def _valid(run: RunResult) -> tuple[EnergyReading, ...]:
    return run.readings if run.power_valid else ()


def _notes(ended: Sequence[Reply], run: RunResult, prefill_devices: Collection[str]) -> list[str]:
    notes = []
    spread = sum(reply.spread for reply in ended)
    if spread:
        notes.append(f"{spread} replies had chunks of several tokens; their gaps were spread by length of text")
    if run.prompt_tokens is None:
        notes.append("users left before the server told how long their prompts were, so input tokens are unknown")
    lost = unread(_valid(run), prefill_devices)
    if lost is not None and run.power_valid:
        notes.append(lost)
    return notes


def _goodput(window: Window, slos: Sequence[Slo], ended: Sequence[RequestRecord]) -> int | None:
    """Requests that met every latency SLO on their own; one without a sample for an SLO is not good. None: no SLO."""
    latency = [slo for slo in slos if slo.metric is not SloMetric.GOODPUT]
    if not latency:
        return None
    return sum(not one.failed and all(_keeps(one, slo) for slo in latency) for one in ended)


def _keeps(record: RequestRecord, slo: Slo) -> bool:
    violation = slo.judge([record]).violation
    return violation is not None and violation <= 0


def request_itl(reply: Reply) -> float | None:
    """Decode time over the tokens after those of the first chunk; None where there are none.

    Dividing by all tokens but one would call a reply fast whose first chunk held several.
    """
    times, later = reply.record.token_times, reply.record.output_tokens - reply.first_chunk
    if len(times) < 2 or later < 1:
        return None
    return (times[-1] - times[0]) / later


def _samples(known: Sequence[Reply]) -> dict[str, list[float]]:
    """One sample a request of each latency that it has."""
    itl = [value for value in map(request_itl, known) if value is not None]
    whole = [one.record.e2e / one.record.output_tokens for one in known if one.record.output_tokens]
    ttft: list[float] = [one.record.ttft for one in known if one.record.ttft is not None]
    return {
        "ttft": ttft,
        "itl": itl,
        "e2e_per_token": whole,
        "e2e": [one.record.e2e for one in known],
        "input_tokens": [float(one.record.prompt_tokens) for one in known if one.asked_counted],
        "output_tokens": [float(one.record.output_tokens) for one in known if one.counted],
    }


def _per_request(known: Sequence[Reply]) -> dict[str, LatencySummary]:
    found = {name: summarize(values) for name, values in _samples(known).items()}
    return {name: summary for name, summary in found.items() if summary is not None and math.isfinite(summary.mean)}


def _prefixes(known: Sequence[Reply], asks: Mapping[str, Ask], sources: Mapping[str, float] | None) -> Prefixes:
    expected = [asks[one.record.request_id].expected_cached for one in known if one.record.request_id in asks]
    told = [value for value in expected if value is not None]
    asked = sum(one.record.prompt_tokens for one in known)
    return Prefixes(
        prompt_tokens=asked if all(one.asked_counted for one in known) else None,
        cached_tokens=cached_total(one.record for one in known),
        expected_tokens=sum(told) if told and len(told) == len(expected) else None,
        sources=sources,
    )
