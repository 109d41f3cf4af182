"""``energyopt plan``: a deployment for GPUs that need not be there yet. Every screen says that it is simulated."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from energyopt.compose.plan import NOTICE, GpuPlan, PlanRequest, launch_commands, make_plans, plan_document
from energyopt.core.config import parse_config
from energyopt.core.errors import NoFeasibleError
from energyopt.core.units import format_figure, format_si, parse_watts
from tuner.simulator.planner import Plan, Pool

from .output import message_console, print_json, result_console
from .tables import DASH


def plan(
    model: Annotated[str, typer.Argument(help="A known model, a model file, or a Hugging Face config.json.")],
    gpu: Annotated[list[str], typer.Option("--gpu", help="GPU type or file; repeat to compare several.")],
    isl: Annotated[int, typer.Option("--isl", min=1, help="Mean prompt tokens.")],
    osl: Annotated[int, typer.Option("--osl", min=2, help="Mean output tokens.")],
    slo: Annotated[list[str], typer.Option("--slo", help="Latency SLO such as tpot:p90<50ms; repeat for several.")],
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="How many GPUs.")] = 8,
    cached: Annotated[float, typer.Option(help="Share of the prompt found in the prefix cache.")] = 0.0,
    precision: Annotated[str | None, typer.Option(help="bf16, fp8, mxfp4 or int4; default: the model's.")] = None,
    power_budget: Annotated[str | None, typer.Option(help="All-in power, such as 100kW: limits the GPUs.")] = None,
    pools: Annotated[bool, typer.Option("--pools/--no-pools", help="Also try prefill and decode pools.")] = True,
    constants: Annotated[str | None, typer.Option(help="A file of constants of your own.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Screen layouts, pools, clocks and caps for an SLO; verify the best by event simulation; recommend one."""
    request = parse_config(
        PlanRequest,
        {
            "model": model,
            "gpus": tuple(gpu),
            "devices": gpus,
            "prompt": isl,
            "output": osl,
            "cached": cached,
            "slos": tuple(slo),
            "precision": precision,
            "pools": pools,
            "constants": constants,
            "power_budget": None if power_budget is None else parse_watts(power_budget),
        },
    )
    message_console().print(f"[dim]{NOTICE}[/]")
    plans = make_plans(request)
    if as_json:
        print_json(plan_document(request, plans))
    else:
        console = result_console()
        for one in plans:
            _show(console, one, request.model)
        if len(plans) > 1:
            console.print(_comparison(plans))
    if all(one.recommendation is None for one in plans):
        raise NoFeasibleError(_nothing(plans, request))


def _show(console: Console, one: GpuPlan, model: str) -> None:
    screening = one.screening
    console.print(
        f"\n[bold]{one.gpu.title}[/] x {one.devices}: {len(screening.layouts.layouts)} of "
        f"{screening.layouts.considered} layouts are valid, {screening.priced} configurations priced, "
        f"{screening.feasible} keep the SLOs"
    )
    for rule, count in {**screening.layouts.removed, **screening.removed}.items():
        console.print(f"  {count} removed: {rule}", markup=False)
    console.print(
        f"  constants: {one.constants.origin}, about ±{one.constants.error:.0%} on joules ({one.constants.provenance})",
        markup=False,
    )
    if one.gpu.unverified:
        console.print(f"  unverified facts of this GPU: {', '.join(one.gpu.unverified)}", markup=False)
    chosen = one.recommendation
    rows = list(screening.front[:12]) or list(screening.nearest)
    if chosen is not None and not any(row is chosen for row in rows):
        rows.append(chosen)
    console.print(_table(one, rows, "Pareto front" if screening.front else "Nearest misses"))
    if chosen is not None:
        console.print("[bold]recommended[/] (*), to start:")
        for line in launch_commands(one, chosen, model):
            console.print(f"  {line}", markup=False, soft_wrap=True)


def _table(one: GpuPlan, rows: list[Plan], title: str) -> Table:
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
            _words(row),
            format_figure(row.user_rate),
            format_figure(row.device_rate),
            format_figure(row.tokens_per_joule),
            DASH if row.rate_per_megawatt is None else format_si(row.rate_per_megawatt, ""),
            format_si(row.ttft, "s"),
            checked,
            style=None if row.feasible else "red",
        )
    return table


def _words(plan: Plan) -> str:
    if plan.prefill is None:
        return _pool_words(plan.decode)
    return f"P {_pool_words(plan.prefill)} + D {_pool_words(plan.decode)}"


def _pool_words(pool: Pool) -> str:
    sizes = {name: size for name, size in pool.layout.model_dump().items() if size > 1}
    layout = " ".join(f"{name}{size}" for name, size in sizes.items()) or "tp1"
    power = f" {pool.power.cap:g}W" if pool.power.cap is not None else ""
    power += f" {pool.power.sm_clock / 1e6:.0f}MHz" if pool.power.sm_clock is not None else ""
    return f"{pool.replicas}x({layout}) seqs={pool.batch}{power}"


def _comparison(plans: list[GpuPlan]) -> Table:
    """Several GPU types at the same SLO."""
    table = Table(title="GPU types at the same SLO (simulated)", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("GPU")
    for name in ("GPUs", "tokens/J", "tok/s/GPU", "tok/s/user", "tok/s/MW", "constants"):
        table.add_column(name, justify="right")
    for one in plans:
        best = one.recommendation
        cells = [DASH] * 4
        if best is not None:
            megawatt = DASH if best.rate_per_megawatt is None else format_si(best.rate_per_megawatt, "")
            cells = [
                format_figure(best.tokens_per_joule),
                format_figure(best.device_rate),
                format_figure(best.user_rate),
                megawatt,
            ]
        table.add_row(one.gpu.name, str(one.devices), *cells, one.constants.origin)
    return table


def _nothing(plans: list[GpuPlan], request: PlanRequest) -> str:
    """One sentence: what came closest and what it misses."""
    nearest = [(one, plan) for one in plans for plan in one.screening.nearest]
    if not nearest:
        return (
            f"{request.model} does not fit: no layout on {request.devices} GPUs leaves memory for one request of "
            f"{request.prompt} + {request.output} tokens, or all that were screened failed their event simulation."
        )
    one, plan = min(nearest, key=lambda pair: pair[1].worst)
    missed = ", ".join(f"{slo} (by {value:.0%})" for slo, value in plan.violations.items() if value > 0)
    return f"No deployment keeps the SLOs: the nearest, {_words(plan)} on {one.gpu.name}, misses {missed} (simulated)."
