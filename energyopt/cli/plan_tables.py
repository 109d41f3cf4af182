"""How a plan looks in a terminal: fronts, comparison, sensitivity and the plot. All of it says: simulated."""

from __future__ import annotations

import plotext
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from energyopt.compose.plan import GpuPlan
from energyopt.core.units import format_figure, format_si
from tuner.simulator.plans import Plan, Pool
from tuner.simulator.sensitivity import FACTORS

from .tables import DASH

MARKERS = ("o", "x", "+", "*", "#", "@")


def front_table(one: GpuPlan, rows: list[Plan], title: str) -> Table:
    table = Table(title=f"{title} (simulated)", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("deployment", overflow="fold", min_width=24)
    for name in ("tok/s\n/user", "tok/s\n/GPU", "tokens\n/J", "tok/s\n/MW", "TTFT", "events\ntok/J"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        run = one.run_of(row)
        checked = DASH if run is None else f"{format_figure(run.tokens_per_joule)}{'' if run.feasible else ' !'}"
        table.add_row(
            "*" if row is one.recommendation else "",
            plan_words(row),
            format_figure(row.user_rate),
            format_figure(row.device_rate),
            format_figure(row.tokens_per_joule),
            DASH if row.rate_per_megawatt is None else format_si(row.rate_per_megawatt, ""),
            format_si(row.ttft, "s"),
            checked,
            style=None if row.feasible else "red",
        )
    return table


def plan_words(plan: Plan) -> str:
    if plan.prefill is None:
        return pool_words(plan.decode)
    return f"P {pool_words(plan.prefill)} + D {pool_words(plan.decode)}"


def pool_words(pool: Pool) -> str:
    sizes = {name: size for name, size in pool.layout.model_dump().items() if size > 1}
    layout = " ".join(f"{name}{size}" for name, size in sizes.items()) or "tp1"
    power = f" {pool.power.cap:g}W" if pool.power.cap is not None else ""
    power += f" {pool.power.sm_clock / 1e6:.0f}MHz" if pool.power.sm_clock is not None else ""
    return f"{pool.replicas}x({layout}) seqs={pool.batch}{power}"


def comparison_table(plans: list[GpuPlan], title: str) -> Table:
    """Several GPU types side by side, each with its recommendation."""
    table = Table(title=f"{title} (simulated)", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("GPU")
    for name in ("GPUs", "tokens/J", "tok/s", "tok/s/GPU", "tok/s/user", "kW", "tok/s/MW", "constants"):
        table.add_column(name, justify="right")
    for one in plans:
        best = one.recommendation
        cells = [DASH] * 6
        if best is not None:
            megawatt = DASH if best.rate_per_megawatt is None else format_si(best.rate_per_megawatt, "")
            figures = (best.tokens_per_joule, best.rate, best.device_rate, best.user_rate, best.watts / 1e3)
            cells = [*(format_figure(value) for value in figures), megawatt]
        table.add_row(one.gpu.name, str(one.devices), *cells, one.constants.origin)
    return table


def sensitivity_table(one: GpuPlan) -> Table:
    """What nobody has verified, and what it would do to tokens per joule of the recommendation."""
    title = "If an unverified value is off: change of tokens/J (simulated)"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("value", overflow="fold")
    table.add_column("why")
    for factor in FACTORS:
        table.add_column(f"{factor - 1:+.0%}", justify="right")
    table.add_column("then")
    for found in one.influences:
        changes = [DASH if change is None else f"{change:+.1%}" for change in found.changes]
        then = [
            word for word, holds in (("misses an SLO", found.misses), ("another is best", found.overtaken)) if holds
        ]
        table.add_row(found.name, found.why, *changes, ", ".join(then))
    return table


def show_front_plot(console: Console, plans: list[GpuPlan]) -> None:
    """The fronts as a plot; plotext keeps one figure for the process, so it is cleared before use."""
    fronts = [(one.gpu.name, one.screening.front) for one in plans if len(one.screening.front) > 1]
    if not fronts:
        return
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(min(console.width - 1, 90), 16)
    plotext.title("tokens/J (up is better) over tok/s/user (right is faster), simulated")
    for marker, (_, front) in zip(MARKERS, fronts, strict=False):
        plotext.scatter([plan.user_rate for plan in front], [plan.tokens_per_joule for plan in front], marker=marker)
    console.print(plotext.uncolorize(plotext.build()).rstrip("\n"), markup=False, highlight=False)
    key = ", ".join(f"{marker} {name}" for marker, (name, _) in zip(MARKERS, fronts, strict=False))
    console.print(f"  {key}", markup=False)
