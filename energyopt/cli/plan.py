"""``energyopt plan``: a deployment for GPUs that need not be there yet. Every screen says that it is simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from energyopt.compose.plan import NOTICE, GpuPlan, PlanRequest, launch_commands, make_plans
from energyopt.compose.plan_files import plan_document, write_plan
from energyopt.core.config import parse_config
from energyopt.core.errors import NoFeasibleError
from energyopt.core.units import parse_watts

from .output import message_console, print_json, result_console
from .plan_tables import comparison_table, front_table, plan_words, sensitivity_table, show_front_plot


def plan(
    model: Annotated[str, typer.Argument(help="A known model, a model file, or a Hugging Face config.json.")],
    gpu: Annotated[list[str], typer.Option("--gpu", "--hardware", help="GPU type or file; repeat to compare several.")],
    isl: Annotated[int, typer.Option("--isl", min=1, help="Mean prompt tokens.")],
    osl: Annotated[int, typer.Option("--osl", min=2, help="Mean output tokens.")],
    slo: Annotated[list[str], typer.Option("--slo", help="Latency SLO such as tpot:p90<50ms; repeat for several.")],
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="How many GPUs.")] = 8,
    cached: Annotated[float, typer.Option(help="Share of the prompt found in the prefix cache.")] = 0.0,
    precision: Annotated[str | None, typer.Option(help="bf16, fp8, mxfp4 or int4; default: the model's.")] = None,
    power_budget: Annotated[str | None, typer.Option(help="All-in power, such as 100kW: limits the GPUs.")] = None,
    pools: Annotated[bool, typer.Option("--pools/--no-pools", help="Also try prefill and decode pools.")] = True,
    constants: Annotated[str | None, typer.Option(help="A file of constants of your own.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for manifest, picture and commands.")] = None,
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
    with message_console().status("planning") as status:
        plans = make_plans(request, status.update)
    if as_json:
        print_json(plan_document(request, plans))
    else:
        console = result_console()
        for one in plans:
            _show(console, one, request.model)
        show_front_plot(console, plans)
        if len(plans) > 1:
            budget = f"{power_budget} all in and the same SLO" if power_budget else "the same SLO"
            console.print(comparison_table(plans, f"GPU types at {budget}"))
    if out is not None:
        for path in write_plan(out, request, plans):
            message_console().print(f"written: {path}", markup=False)
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
    console.print(front_table(one, rows, "Pareto front" if screening.front else "Nearest misses"))
    if chosen is not None:
        console.print("[bold]recommended[/] (*), to start:")
        for line in launch_commands(one, chosen, model):
            console.print(f"  {line}", markup=False, soft_wrap=True)
        if one.influences:
            console.print(sensitivity_table(one))


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
    return (
        f"No deployment keeps the SLOs: the nearest, {plan_words(plan)} on {one.gpu.name}, misses {missed} (simulated)."
    )
