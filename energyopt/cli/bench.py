"""``energyopt bench``: a workload against any OpenAI-compatible server, with joules where they can be had."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from energyopt.compose.bench import BenchRequest, plan_bench, run_bench
from energyopt.compose.runs import keep_bench, stored_bench
from energyopt.core.config import parse_config
from energyopt.core.units import parse_seconds
from tuner.ports import Progress as Stage
from tuner.replay.compare import compare
from tuner.replay.result import BenchResult

from .bench_tables import print_bench
from .output import METER_HELP, message_console, print_json, result_console


def bench(
    target: Annotated[str, typer.Argument(help="http address of a server, or a model to serve for the occasion.")],
    workload: Annotated[
        str, typer.Option(help="chat, agentic, synthetic, or a trace: file or folder of sessions.")
    ] = "chat",
    scenario: Annotated[Literal["agentx"] | None, typer.Option(help="Rules of a known benchmark.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Sessions alive at once (closed loop).")] = 8,
    arrivals: Annotated[
        str | None, typer.Option(help="Open loop: recorded, poisson:RATE, gamma:RATE,CV, burst:RATE,SIZE.")
    ] = None,
    duration: Annotated[str | None, typer.Option(help="Length of the window: default 30s, 900s for agentx.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Play the workload once and measure all of it.")] = False,
    warmup: Annotated[str, typer.Option(help="Load before the window.")] = "5s",
    slo: Annotated[list[str] | None, typer.Option("--slo", help="SLO such as ttft:p90<500ms; repeat.")] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model; default: the server's first.")] = None,
    endpoint: Annotated[
        Literal["chat", "completions"], typer.Option(help="completions sends token ids: exact lengths.")
    ] = "chat",
    api_key: Annotated[str | None, typer.Option(envvar="ENERGYOPT_API_KEY", help="Sent to the server.")] = None,
    form: Annotated[str, typer.Option("--format", help="Format of the trace.")] = "auto",
    block_size: Annotated[int | None, typer.Option(min=1, help="Tokens a block id stands for (Mooncake).")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave malformed rows out.")] = False,
    sessions: Annotated[int | None, typer.Option(min=1, help="Only so many sessions.")] = None,
    isl: Annotated[str, typer.Option(help="synthetic: input tokens a turn: 256, 100..400 or 200~0.6.")] = "256",
    osl: Annotated[str, typer.Option(help="synthetic: output tokens a turn.")] = "64",
    turns: Annotated[str, typer.Option(help="synthetic: turns a session.")] = "1",
    shared_tokens: Annotated[int, typer.Option(min=0, help="synthetic: tokens in front of every prompt.")] = 0,
    scale: Annotated[int, typer.Option(min=1, help="agentic: divide lengths and times by this.")] = 1,
    thin: Annotated[int, typer.Option(min=1, help="Keep one in so many blocks of a trace.")] = 1,
    speedup: Annotated[float, typer.Option(help="Divide recorded times.")] = 1.0,
    no_delays: Annotated[bool, typer.Option("--no-delays", help="Leave recorded waiting out.")] = False,
    gap_cap: Annotated[str | None, typer.Option(help="Longest single wait, such as 60s.")] = None,
    idle_cap: Annotated[str | None, typer.Option(help="Longest time with nothing in flight.")] = None,
    cache_bust: Annotated[bool, typer.Option("--cache-bust", help="Sessions share no prefix.")] = False,
    answers: Annotated[Literal["live", "recorded"], typer.Option(help="What stands in the history.")] = "live",
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos/--no-ignore-eos", help="Exact output lengths.")] = True,
    patience: Annotated[str | None, typer.Option(help="Users leave without a first token in this time.")] = None,
    abandon: Annotated[float, typer.Option(min=0, max=1, help="Share of users who leave early.")] = 0.0,
    meter: Annotated[str, typer.Option(metavar="KIND", help=METER_HELP)] = "auto",
    energy_url: Annotated[str | None, typer.Option(help="Metrics page with energy: an agent's or DCGM's.")] = None,
    devices: Annotated[int | None, typer.Option(min=1, help="GPUs the server uses.")] = None,
    prefill_devices: Annotated[
        str | None, typer.Option(metavar="IDS", help="Devices of the prefill pool, comma-separated: its joules apart.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of workload and content.")] = 0,
    against: Annotated[str | None, typer.Option(help="Compare with this run: id, or latest.")] = None,
    db: Annotated[str | None, typer.Option("--db", help="Database: a path or URL.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the report.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Measure latency, throughput, cache hits and joules of a server under a workload."""
    lengths = {"isl": isl, "osl": osl, "turns": turns, "shared_tokens": shared_tokens, "scale": scale}
    source = {"name": workload, "form": form, "block_size": block_size, "skip_bad": skip_bad, "sessions": sessions}
    request = parse_config(
        BenchRequest,
        {
            "target": target,
            "workload": {**lengths, **source, "seed": seed, "keep_one_in": thin},
            "model": model,
            "api_key": api_key,
            "endpoint": endpoint,
            "concurrency": concurrency,
            "arrivals": arrivals,
            "warmup": parse_seconds(warmup),
            "slos": tuple(slo or ()),
            "speedup": speedup,
            "gap_cap": _seconds(gap_cap),
            "idle_cap": _seconds(idle_cap),
            "delays": not no_delays,
            "cache_bust": cache_bust,
            "answers": answers,
            "ignore_eos": ignore_eos,
            "patience": _seconds(patience),
            "abandon": abandon,
            "meter": meter,
            "energy_url": energy_url,
            "devices": devices,
            "prefill_devices": tuple(name for name in (prefill_devices or "").split(",") if name),
            "seed": seed,
            "scenario": scenario,
            **_length(duration, once=once),
        },
    )
    earlier = None if against is None else stored_bench(against, db)
    result = _run(request)
    differences = [] if earlier is None else compare(earlier, result)
    url, files = keep_bench(result, db, out, differences)
    if as_json:
        stored = {"database": url, "files": files}
        changes = [{"name": one.name, "ratio": one.ratio, "low": one.low, "high": one.high} for one in differences]
        print_json({**result.document(), "against": changes, "stored": stored})
        return
    print_bench(result_console(), result, differences)
    console = result_console()
    console.print(f"stored: run {result.id} in {url}", markup=False, soft_wrap=True)
    for path in files:
        console.print(f"  {path}", markup=False, soft_wrap=True)


def _run(request: BenchRequest) -> BenchResult:
    """Plan and run, with a bar on a terminal."""
    console = message_console()
    plan = plan_bench(request)
    console.print(f"{plan.trace.name}: {len(plan.trace.sessions)} sessions; {request.target}", markup=False)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("starting", total=1.0)

        def show(stage: Stage) -> None:
            bar.update(task, description=stage.stage, completed=stage.fraction)

        return run_bench(plan, show)


def _length(duration: str | None, *, once: bool) -> dict[str, float | None]:
    """How long the window is, where anything was said of it."""
    if once:
        return {"duration": None}
    return {} if duration is None else {"duration": parse_seconds(duration)}


def _seconds(text: str | None) -> float | None:
    return None if text is None else parse_seconds(text)
