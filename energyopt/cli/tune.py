"""``energyopt tune``: from a model and an SLO to a verified configuration, in one command."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from energyopt.compose.results import open_session
from energyopt.compose.study import PlannedStudy, TuneRequest, create_study, plan_study
from energyopt.compose.study_files import plan_file, read_study_file
from energyopt.compose.warm_start import Machine, warm_start
from energyopt.core.config import parse_config
from energyopt.core.errors import ConfigError
from energyopt.core.footprint import FootprintConfig
from energyopt.core.study import Sampler
from energyopt.core.units import format_duration, parse_seconds

from .footprint import Currency, Grid, Price, Pue, footprint_config
from .kv_options import (
    AdmitAfter,
    DiskPath,
    DiskPerHost,
    Eviction,
    HostPerHost,
    HostPerRank,
    Load,
    SharedPerHost,
    SharedUrl,
    Store,
    tier_settings,
)
from .output import METER_HELP, message_console, print_json, result_console
from .run import run_and_print


def tune(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Argument(help="Alias (smollm2-135m), GGUF file or Hugging Face directory.")
    ] = None,
    study: Annotated[
        Path | None, typer.Option("--study", help="A study file instead of a model and options (`energyopt study`).")
    ] = None,
    slo: Annotated[
        list[str] | None, typer.Option("--slo", help="Latency SLO such as ttft:p90<500ms; repeat for several.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="At most 5 minutes: short windows, a small space.")] = False,
    trials: Annotated[int | None, typer.Option(min=1, help="Configurations to try, the baseline included.")] = None,
    time_limit: Annotated[str | None, typer.Option(help="End the study in this time, such as 30min.")] = None,
    window: Annotated[str | None, typer.Option(help="Length of a steady-state window, such as 15s.")] = None,
    pairs: Annotated[int | None, typer.Option(min=0, help="Winner/baseline pairs of the verification.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Chat sessions at once.")] = 8,
    seed: Annotated[int, typer.Option(help="Seed of workload and search.")] = 0,
    sampler: Annotated[Sampler, typer.Option(help="Search strategy.")] = "auto",
    meter: Annotated[str, typer.Option(metavar="KIND", help=METER_HELP)] = "auto",
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where the engine runs.")] = "auto",
    dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], typer.Option(help="Weights.")] = "auto",
    max_model_len: Annotated[int | None, typer.Option(min=1, help="Context limit; default: the model's.")] = None,
    kv_host_gib_per_host: HostPerHost = None,
    kv_host_gib_per_rank: HostPerRank = None,
    kv_disk_gib_per_host: DiskPerHost = None,
    kv_disk_path: DiskPath = None,
    kv_shared_gib_per_host: SharedPerHost = None,
    kv_shared_url: SharedUrl = None,
    kv_tier_eviction: Eviction = "lru",
    kv_tier_admit_after: AdmitAfter = 1,
    kv_tier_store: Store = "eager",
    kv_tier_load: Load = "always",
    pue: Pue = None,
    grid_intensity: Grid = None,
    electricity_price: Price = None,
    currency: Currency = "USD",
    db: Annotated[str | None, typer.Option("--db", help="Database: a path or URL. Default: the user's own.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the report. Default: beside the database.")] = None,
    hardware: Annotated[
        str | None, typer.Option(help="This machine for the simulator (GPU name or file): it chooses the first trials.")
    ] = None,
    constants: Annotated[str | None, typer.Option(help="The simulator's calibrated constants of this machine.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Find the configuration with the most tokens per joule that keeps the SLO, and verify it against the default."""
    if (model is None) == (study is None):
        raise ConfigError("Give a model, or --study FILE; one of them and not both.")
    if study is not None:
        planned = plan_file(read_study_file(study))
    else:
        footprint = footprint_config(pue, grid_intensity, electricity_price, currency)
        planned = plan_study(_request(context.params, footprint))
    console = message_console()
    if dry_run:
        show_plan(result_console() if not as_json else console, planned)
        if as_json:
            print_json(planned.document())
        return
    show_plan(console, planned)
    session = open_session(db, out)
    study_id = create_study(session, planned)
    if hardware is not None:
        with console.status("simulating where to begin"):
            begun = warm_start(
                session, study_id, Machine(hardware, planned.spec.baseline.decode.engine.model, constants)
            )
        console.print(f"  {begun} of the first trials are chosen by simulation; they are measured like the others")
    run_and_print(session, study_id, as_json=as_json)


def _request(options: Mapping[str, Any], footprint: FootprintConfig) -> TuneRequest:
    """What the options (a Typer context's ``params``) ask for: an option with the name of a field is that field."""
    durations = {name: options[name] and parse_seconds(options[name]) for name in ("time_limit", "window")}
    own = {name: options[name] for name in TuneRequest.model_fields if name in options}
    slos = {"slos": tuple(options["slo"] or ())}
    return parse_config(TuneRequest, {**own, **durations, **slos, "footprint": footprint, "kv": tier_settings(options)})


def show_plan(console: Console, planned: PlannedStudy) -> None:
    """What a study will do, before it does it."""
    spec = planned.spec
    console.print(f"[bold]{spec.name}[/]  SLO: {', '.join(spec.slos)}")
    console.print(
        f"  {planned.valid_points} valid configurations, up to {spec.budget.trials} tried, "
        f"{spec.budget.verify_pairs} verification pairs, about {format_duration(planned.expected_seconds)}",
        markup=False,
        soft_wrap=True,
    )
    for rule, count in planned.removed.items():
        console.print(f"  {count} combinations removed: {rule}", markup=False, soft_wrap=True)
    for line in planned.meter_notes:
        console.print(f"  energy: {line}", markup=False, soft_wrap=True)
