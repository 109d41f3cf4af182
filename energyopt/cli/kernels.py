"""``energyopt kernels tune|check``: the GPU kernels of this machine."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from energyopt.compose.kernel_check import CheckProgress, CheckReport, check_kernels
from energyopt.compose.kernel_tune import TuneReport, TuneRequest, tune_kernels
from energyopt.core.units import format_si
from kernels.table import Entry
from kernels.tuning.tuner import Progress as TuneProgress

from .layout_options import TensorParallel
from .output import METER_HELP, message_console, print_json, result_console
from .tables import DASH

MOST_REASONS = 5
"""That plans failed for and that are printed; a document has all."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def tune(
    model: Annotated[
        Path | None, typer.Option(help="Directory of the model to tune for. Default: Llama-3.1-8B's shape.")
    ] = None,
    objective: Annotated[
        Literal["energy", "time"], typer.Option(help="energy: least joules within 3% of the fastest.")
    ] = "energy",
    dtype: Annotated[Literal["auto", "bfloat16", "float16"], typer.Option(help="Number format.")] = "auto",
    meter: Annotated[str, typer.Option(help=METER_HELP)] = "auto",
    seconds: Annotated[float, typer.Option(min=0.5, max=60, help="Length of one measured window.")] = 5.0,
    out: Annotated[Path | None, typer.Option(help="Table to write. Default: the one that the engine loads.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew instead of going on with the table.")] = False,
    tensor_parallel_size: TensorParallel = 1,
    as_json: Json = False,
) -> None:
    """Measure kernel launches on this GPU for joules and time; the engine uses what it finds from its next start on."""
    request = TuneRequest(model, dtype, objective, meter, seconds, out, fresh, tensor_parallel_size)
    with _bar() as bar:
        task = bar.add_task("", total=1.0)

        def show(state: TuneProgress) -> None:
            bar.update(task, completed=share_done(state), description=words(state))

        report = tune_kernels(request, show)
    if as_json:
        print_json(report.document())
    else:
        _print_tuned(report)
    if report.skipped:
        raise typer.Exit(1)


def check(
    only: Annotated[list[str] | None, typer.Option("--only", help="Name of a use; repeat for several.")] = None,
    as_json: Json = False,
) -> None:
    """Error of every kernel against its plain twin and, on a GPU, its share of the bandwidth or matrix rate."""
    with _bar() as bar:
        task = bar.add_task("", total=1.0)

        def show(state: CheckProgress) -> None:
            bar.update(task, completed=state.done / state.total, description=state.name)

        report = check_kernels(only, show)
    if as_json:
        print_json(report.document())
    else:
        _print_checked(report)
    if not report.ok:
        raise typer.Exit(1)


def share_done(state: TuneProgress) -> float:
    """The share of the search that is behind it; measuring takes most of a problem's time."""
    looked, weight = state.step / state.steps, 0.3
    within = weight * looked if state.stage == "looking" else weight + (1 - weight) * looked
    return (state.done + within) / state.total


def words(state: TuneProgress) -> str:
    """What the search does now."""
    return f"{state.problem}: {state.stage}, {state.step + 1} of {state.steps} ({state.done} of {state.total} done)"


def _bar() -> Progress:
    console = message_console()
    columns = (BarColumn(bar_width=30), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn())
    return Progress(
        *columns, TextColumn("{task.description}"), console=console, transient=True, disable=not console.is_terminal
    )


def _print_tuned(report: TuneReport) -> None:
    console = result_console()
    title = f"Launches on {report.table.measured.device}, for {report.table.objective}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("use")
    table.add_column("launch")
    for name in ("time", "saved", "energy", "saved"):
        table.add_column(name, justify="right")
    table.add_column("source")
    for entry in report.table.entries:
        table.add_row(*tuned_cells(entry))
    console.print(table)
    for line in left_out(report):
        message_console().print(line, markup=False, soft_wrap=True)
    for note in report.notes:
        message_console().print(note, markup=False, soft_wrap=True)
    console.print(f"written to {report.path}; the engine loads it at its next start", markup=False, soft_wrap=True)


def left_out(report: TuneReport) -> list[str]:
    """Problems without a result, and each reason that plans failed for, once, with how many it met."""
    lines = [f"not measured: {one.problem}: {one.reason}" for one in report.skipped]
    reasons = Counter(failure.reason.replace(str(failure.plan), "...") for _, failure in report.failures)
    lines += [f"{count} of the plans tried: {reason}" for reason, count in reasons.most_common(MOST_REASONS)]
    if len(reasons) > MOST_REASONS:
        lines.append(f"{len(reasons) - MOST_REASONS} more reasons: --json lists every plan that failed")
    return lines


def tuned_cells(entry: Entry) -> tuple[str, ...]:
    """One line of the table: what was chosen, and what it saves against the launch without a table."""
    time = (format_si(entry.seconds, "s"), _saved(entry.seconds, entry.default_seconds))
    energy = (DASH, DASH, DASH)
    if entry.energy is not None:
        joules = f"{format_si(entry.energy.joules, 'J')} ± {entry.energy.error / entry.energy.joules:.1%}"
        before = None if entry.default_energy is None else entry.default_energy.joules
        energy = (joules, _saved(entry.energy.joules, before), entry.energy.source)
    return (str(entry.problem), str(entry.plan_of()), *time, *energy)


def _saved(now: float, default: float | None) -> str:
    return DASH if default is None else f"{1 - now / default:.1%}"


def _print_checked(report: CheckReport) -> None:
    console = result_console()
    table = Table(title=f"Kernels on {report.device}", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("use")
    table.add_column("format")
    for name in ("error", "time", "share", "goal") if report.ceilings else ("error",):
        table.add_column(name, justify="right")
    for name in ("of", "") if report.ceilings else ("",):
        table.add_column(name)
    for row in report.rows:
        figures = (
            DASH if row.seconds is None else format_si(row.seconds, "s"),
            DASH if row.share is None else f"{row.share:.0%}",
            DASH if row.goal is None else f"{row.goal:.0%}",
            row.bound or DASH,
        )
        error, verdict = (
            DASH if row.error is None else f"{row.error:.1e}",
            "" if row.ok else "failed" if row.note else "missed",
        )
        table.add_row(row.name, row.dtype, error, *(figures if report.ceilings else ()), verdict)
    console.print(table)
    console.print(report.how, soft_wrap=True)
    for row in report.rows:
        if row.note:
            console.print(f"{row.name} {row.dtype}: {row.note}", markup=False, soft_wrap=True)
    missed = sum(not row.ok for row in report.rows)
    console.print("every kernel is within its bounds" if not missed else f"{missed} of {len(report.rows)} are not")
