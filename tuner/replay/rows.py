"""A benchmark in words and figures: the same rows for the terminal and the report."""

from __future__ import annotations

from energyopt.core.results import LatencySummary
from energyopt.core.units import format_figure, format_si

from .compare import Difference
from .pools import PoolJoules
from .result import BenchResult

Row = tuple[str, ...]
_ACCOUNTED = "as the server accounts for them, which tells neither source nor error"
LATENCY_HEAD = ("", "mean", "p50", "p90", "p95", "p99", "samples")


def latency_rows(result: BenchResult) -> list[Row]:
    """Latencies as users saw them, failures as infinite; then per request, failures left out."""
    named = {
        "TTFT": result.run.latencies.get("ttft"),
        "ITL (gaps)": result.run.latencies.get("itl"),
        "E2E": result.run.latencies.get("e2e"),
        "ITL (per request)": result.per_request.get("itl"),
    }
    return [_latency(name, summary) for name, summary in named.items()]


def agentx_words(result: BenchResult) -> str | None:
    """The point of this run in AgentX's plane, and what it cost; None for other runs."""
    if result.subject.scenario != "agentx":
        return None
    rates, speed, joules = result.rates, result.interactivity, result.joules_per
    return (
        f"AgentX: {format_figure(rates['total_tok_s_device'])} total and {format_figure(rates['output_tok_s_device'])} "
        f"output tok/s/device at {format_figure(speed['p90'])} tok/s/user (P90); "
        f"{format_si(joules['total_token'], 'J')}/token, {format_si(joules['output_token'], 'J')}/output token, "
        f"{format_si(joules['uncached_input_token'], 'J')}/uncached input token; hit rate "
        f"{_percent(result.prefixes.hit_rate)} of {_percent(result.prefixes.ideal_rate)} possible"
    )


def _latency(name: str, summary: LatencySummary | None) -> Row:
    if summary is None:
        return (name, *["—"] * 6)
    values = (summary.mean, summary.p50, summary.p90, summary.p95, summary.p99)
    return (name, *(format_si(value, "s") for value in values), f"{summary.samples:,}")


def figure_rows(result: BenchResult) -> list[Row]:
    """Name, value and what it means."""
    rates, speed, joules = result.rates, result.interactivity, result.joules_per
    run, prefixes = result.run, result.prefixes
    rows: list[Row] = [
        ("requests", f"{run.requests:,} ({run.failed_requests} failed, {result.left} left)", f"in {run.window:.1f} s"),
        *_cut(result),
        ("requests/s", format_figure(rates["requests_per_s"]), ""),
        ("output tok/s", format_figure(rates["output_tok_s"]), "of all devices"),
        ("total tok/s", format_figure(rates["total_tok_s"]), "input with its cached tokens, and output"),
        ("output tok/s/device", format_figure(rates["output_tok_s_device"]), f"{result.subject.devices} devices"),
        ("interactivity p50", format_figure(speed["p50"]), "tok/s and user, 1/ITL"),
        ("interactivity p90", format_figure(speed["p90"]), "9 of 10 users are faster"),
        ("whole answer p90", format_figure(speed["e2e_p90"]), "tok/s and user, tokens/E2E"),
        ("hit rate", _percent(prefixes.hit_rate), f"of input tokens; ideal {_percent(prefixes.ideal_rate)}"),
        ("goodput", format_figure(result.goodput), f"requests/s that met every SLO ({_percent(result.good_share)})"),
        ("tokens/J", format_figure(run.tokens_per_joule if result.tokens_known else None), "output tokens"),
    ]
    rows += [(f"J/{name.replace('_', ' ')}", format_si(value, "J"), "") for name, value in joules.items()]
    return rows


def _cut(result: BenchResult) -> list[Row]:
    if not result.cut_sessions:
        return []
    return [("cut sessions", f"{result.cut_sessions:,}", "outgrew the context: their last request was not served")]


def energy_words(result: BenchResult) -> str:
    """Joules with source and error, or why there are none."""
    run = result.run
    if run.energy is None or not run.power_valid:
        return "energy: not valid: " + "; ".join(run.power_reasons or ("no meter",))
    total = run.energy
    return (
        f"energy: {format_si(total.joules, 'J')} ± {format_si(total.error, 'J')} ({total.label}), "
        f"mean {format_si(total.joules / run.window, 'W')}"
    )


def source_words(result: BenchResult) -> str | None:
    """Prompt tokens by source as the server counted them."""
    sources = result.prefixes.sources
    if not sources:
        return None
    whole = sum(sources.values()) or 1.0
    parts = ", ".join(f"{name} {value:,.0f} ({value / whole * 100:.1f} %)" for name, value in sources.items())
    return f"prompt tokens by source (server): {parts}"


def pool_words(result: BenchResult) -> str | None:
    """Joules of two pools, or of the phases of one, apart; None where they are not known."""
    pools, phases, joules = result.pools, result.phases, result.pool_joules
    if pools is not None:
        said = _ACCOUNTED if pools.basis == "account" else "by device"
        return (
            f"pools ({said}): prefill {_pool(pools.prefill)}, "
            f"{format_si(joules['prefill_input_token'], 'J')}/input token, "
            f"{format_si(joules['prefill_uncached_input_token'], 'J')}/uncached input token; "
            f"decode {_pool(pools.decode)}, {format_si(joules['decode_output_token'], 'J')}/output token"
        )
    if not phases:
        return None
    told = ", ".join(f"{name} {format_si(value, 'J')}" for name, value in phases.items())
    return f"phases ({_ACCOUNTED}): {told}"


def _pool(pool: PoolJoules) -> str:
    if pool.error is None:
        return format_si(pool.joules, "J")
    return f"{format_si(pool.joules, 'J')} ± {format_si(pool.error, 'J')} ({'+'.join(pool.sources)})"


def client_words(result: BenchResult) -> str:
    """How the load generator itself fared."""
    client = result.client
    return (
        f"client: {client.cpu * 100:.0f} % of a core, sends {client.send_lag * 1e3:.1f} ms late at p99, "
        f"wakes {client.loop_lag * 1e3:.1f} ms late at p99"
    )


def difference_rows(differences: list[Difference]) -> list[Row]:
    """Name, before, after, change with its interval, and a word."""
    words = {True: "better", False: "worse", None: "may be chance"}
    return [
        (
            one.name,
            format_figure(one.before),
            format_figure(one.after),
            f"{(one.ratio - 1) * 100:+.1f} %",
            "—"
            if one.low is None or one.high is None
            else f"{(one.low - 1) * 100:+.1f} to {(one.high - 1) * 100:+.1f} %",
            words[one.better],
        )
        for one in differences
    ]


def _percent(value: float | None) -> str:
    return "—" if value is None else f"{value * 100:.2f} %"
