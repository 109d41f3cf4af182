"""The numbers of a run as names and values: what a dashboard selects by SQL.

The names: ``window requests failed_requests prompt_tokens cached_tokens output_tokens output_rate joules joules_error
tokens_per_joule joules_per_request joules_per_uncached_input_token hit_rate peak_memory_bytes slo_violation``,
``{ttft,itl,tpot,e2e}_{mean,p50,p90,p95,p99}`` (seconds), ``joules_{prefill,decode,idle,overhead}`` and
``cached_tokens_{tier}``.
"""

from __future__ import annotations

import math

from energyopt.core.results import RunResult


def metrics_of(result: RunResult) -> dict[str, float]:
    """All known numbers of ``result``. What is unknown has no entry; an infinite latency (a failed request) stays."""
    values: dict[str, float | None] = {
        "window": result.window,
        "requests": result.requests,
        "failed_requests": result.failed_requests,
        "prompt_tokens": result.prompt_tokens,
        "cached_tokens": result.cached_tokens,
        "output_tokens": result.output_tokens,
        "output_rate": result.output_rate,
        "tokens_per_joule": result.tokens_per_joule,
        "joules_per_request": result.joules_per_request,
        "joules_per_uncached_input_token": result.joules_per_uncached_input_token,
        "hit_rate": result.hit_rate,
        "peak_memory_bytes": result.peak_memory_bytes,
        "slo_violation": _worst_violation(result),
        **_joules(result),
        **{f"cached_tokens_{tier}": hits for tier, hits in result.hits_by_tier.items()},
    }
    for name, latency in result.latencies.items():
        for statistic in ("mean", "p50", "p90", "p95", "p99"):
            values[f"{name}_{statistic}"] = getattr(latency, statistic)
    return {name: float(value) for name, value in values.items() if value is not None and not math.isnan(value)}


def _joules(result: RunResult) -> dict[str, float | None]:
    """Joules count only where the run's power is valid; the reading itself is kept beside them either way."""
    if result.joules is None or result.energy is None:
        return {}
    values: dict[str, float | None] = {"joules": result.joules, "joules_error": result.energy.error}
    if result.split is not None:
        values["joules_prefill"] = result.split.prefill
        values["joules_decode"] = result.split.decode
        values["joules_idle"] = result.split.idle
        values["joules_overhead"] = result.split.overhead
    return values


def _worst_violation(result: RunResult) -> float | None:
    """The largest relative violation over all SLOs (at most 0: all kept); None if one of them is unknown."""
    known = [verdict.violation for verdict in result.verdicts if verdict.violation is not None]
    return max(known) if known and len(known) == len(result.verdicts) else None
