"""``energyopt workload describe``: what a recorded workload is like."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import plotext
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from energyopt.core.units import format_duration, format_figure
from tuner.workload.formats import read_trace
from tuner.workload.statistics import Spread, TraceStatistics
from tuner.workload.statistics import describe as statistics_of
from tuner.workload.trace import Trace

from .output import message_console, print_json, result_console

_SHOWN_SKIPS = 5


def describe(
    file: Annotated[Path, typer.Argument(help="Trace file, or a folder of agentic sessions.")],
    form: Annotated[str, typer.Option("--format", help="auto, mooncake, weka, azure, messages or sharegpt.")] = "auto",
    block_size: Annotated[int | None, typer.Option(min=1, help="Tokens a block id stands for (Mooncake: 512).")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave malformed rows out and count them.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Lengths, reuse, ideal hit rate, sessions and arrivals of a workload."""
    console = message_console()
    with console.status(f"reading {file}"):
        trace = read_trace(file, form=form, block_tokens=block_size, skip_bad=skip_bad)
        found = statistics_of(trace)
    for line in trace.skipped[:_SHOWN_SKIPS]:
        console.print(f"skipped: {line}", markup=False)
    if len(trace.skipped) > _SHOWN_SKIPS:
        console.print(f"skipped: {len(trace.skipped) - _SHOWN_SKIPS} more rows", markup=False)
    if as_json:
        print_json(document(found))
        return
    show(result_console(), trace, found)


def document(found: TraceStatistics) -> dict[str, object]:
    """The statistics with their ratios, as one JSON-ready object."""
    whole: dict[str, object] = found.model_dump(mode="json")
    whole["input_to_output"] = found.input_to_output
    if found.reuse is not None:
        rates = {"ideal_hit_rate": found.reuse.hit_rate, "ideal_token_hit_rate": found.reuse.token_hit_rate}
        whole["reuse"] = found.reuse.model_dump(mode="json") | rates
    return whole


def show(console: Console, trace: Trace, found: TraceStatistics) -> None:
    """Everything for a person: a head line, a table of spreads, reuse, arrivals, and a plot."""
    extra = f", {found.sub_agents} sub-agents" if found.sub_agents else ""
    skipped = f", {found.skipped} rows skipped" if found.skipped else ""
    console.print(f"{found.name}: {found.requests:,} requests in {found.sessions:,} sessions{extra}{skipped}")
    console.print(_spreads(found))
    reuse = found.reuse
    if reuse is None:
        console.print("reuse: unknown, the trace has no block ids")
    else:
        console.print(
            f"ideal hit rate: {_percent(reuse.hit_rate)} of {reuse.block_tokens}-token blocks, "
            f"{_percent(reuse.token_hit_rate)} of tokens; {reuse.distinct_blocks:,} distinct blocks "
            f"({reuse.distinct_blocks * reuse.block_tokens:,} tokens)"
        )
    if found.input_to_output is not None:
        console.print(f"input : output = {format_figure(found.input_to_output)} : 1")
    if found.arrivals is not None:
        burst = found.arrivals
        console.print(
            f"arrivals: {format_figure(burst.rate)} requests/s over {format_duration(burst.span)}, gaps with CV "
            f"{format_figure(burst.cv)} (Poisson: 1), busiest minute {format_figure(burst.peak_to_mean)} x the mean"
        )
    _plot(console, trace, found)


def _spreads(found: TraceStatistics) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for name in ("mean", "p10", "p50", "p90", "p99", "max"):
        table.add_column(name, justify="right", no_wrap=True)
    rows: Sequence[tuple[str, Spread | None]] = (
        ("input tokens", found.input_tokens),
        ("output tokens", found.output_tokens),
        ("uncached input (ideal)", found.reuse.uncached_input if found.reuse else None),
        ("requests a session", found.requests_per_session),
        ("think time (s)", found.think_time),
        ("session span (s)", found.session_span),
    )
    for name, spread in rows:
        values = (None,) * 6 if spread is None else (*_numbers(spread),)
        table.add_row(name, *(format_figure(value) for value in values))
    return table


def _numbers(spread: Spread) -> tuple[float, ...]:
    return spread.mean, spread.p10, spread.p50, spread.p90, spread.p99, spread.max


def _plot(console: Console, trace: Trace, found: TraceStatistics) -> None:
    """Requests a minute where the arrivals are known, else how prompts grow within the longest session."""
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(min(console.width - 1, 90), 14)
    if found.arrivals is not None and len(found.arrivals.per_minute) > 1:
        plotext.title("requests a minute")
        plotext.bar(list(range(len(found.arrivals.per_minute))), list(found.arrivals.per_minute), width=0.8)
    else:
        longest = max(trace.sessions, key=lambda session: len(session.root.calls))
        sizes = [call.input_tokens for call in longest.root.calls if call.input_tokens is not None]
        if len(sizes) < 2:
            return
        plotext.title(f"input tokens of each request of the longest session, {longest.id}")
        plotext.plot(list(range(1, len(sizes) + 1)), sizes)
    console.print(plotext.uncolorize(plotext.build()), markup=False, highlight=False)


def _percent(value: float | None) -> str:
    return "—" if value is None else f"{value * 100:.2f} %"
