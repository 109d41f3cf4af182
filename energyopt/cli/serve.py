"""``energyopt serve``: the OpenAI-compatible service, under a power cap if one is given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from api.keys import read_keys
from energyopt.compose.service import ServeRequest, run_service
from energyopt.core.config import EngineConfig, PowerConfig, parse_config
from energyopt.core.errors import ConfigError
from energyopt.core.units import parse_bytes, parse_hertz, parse_interval, parse_watts

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
from .output import METER_HELP, message_console


def serve(
    model: Annotated[str, typer.Argument(help="Alias (smollm2-135m), GGUF file or Hugging Face directory.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    served_model_name: Annotated[str | None, typer.Option(help="Name in the API; default: the model's.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="ENERGYOPT_API_KEY", help="Clients must send it.")] = None,
    api_keys: Annotated[
        Path | None, typer.Option(help="File of lines 'TENANT KEY': energy is told by tenant in /metrics.")
    ] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where the engine runs.")] = "auto",
    dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], typer.Option(help="Weights.")] = "auto",
    kernels: Annotated[Literal["auto", "reference"], typer.Option(help="Operator implementations.")] = "auto",
    seed: Annotated[int, typer.Option(help="Seed of sampling without a seed of its own.")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default: every core.")] = None,
    max_model_len: Annotated[int | None, typer.Option(min=1, help="Context limit; default: the model's.")] = None,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Requests in one step.")] = 64,
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="Tokens in one step.")] = 2048,
    max_num_queued_reqs: Annotated[int, typer.Option(min=1, help="Waiting requests before 503.")] = 1024,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens in one KV block.")] = 16,
    enable_prefix_caching: Annotated[
        bool, typer.Option("--enable-prefix-caching/--no-enable-prefix-caching", help="Keep and reuse prefixes.")
    ] = True,
    kv_cache_memory_bytes: Annotated[str | None, typer.Option(help="KV pool, such as 2GiB.")] = None,
    prefix_cache_retention_interval: Annotated[
        str, typer.Option(help="Tokens between kept states and windows: 0 keeps boundaries only, 'dense' keeps all.")
    ] = "0",
    prefix_match_unit: Annotated[
        int | None, typer.Option(min=1, help="Tokens in which a hit may end inside a block; default: whole blocks.")
    ] = None,
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
    meter: Annotated[str, typer.Option(metavar="KIND", help=METER_HELP)] = "auto",
    idle_energy: Annotated[
        Literal["separate", "share", "reservation"],
        typer.Option(help="Who answers for idle joules: nobody, tenants by use, or tenants by --reservation."),
    ] = "separate",
    reservation: Annotated[
        list[str] | None, typer.Option(help="TENANT=SHARE of the machine, such as search=0.5; repeat for several.")
    ] = None,
    pue: Pue = None,
    grid_intensity: Grid = None,
    electricity_price: Price = None,
    currency: Currency = "USD",
    power_cap: Annotated[
        str | None,
        typer.Option(help="Cap of each device, such as 300W; `auto`: as low as --slo allows. Put back at exit."),
    ] = None,
    slo: Annotated[
        list[str] | None, typer.Option("--slo", help="For --power-cap auto, such as ttft:p90<500ms; repeat.")
    ] = None,
    sm_clock: Annotated[str | None, typer.Option(help="SM clock of each device, such as 1.2GHz; put back.")] = None,
) -> None:
    """Serve a model over HTTP (OpenAI's API), with joules in every reply where this machine can tell them."""
    tiers = tier_settings(
        host_per_host=kv_host_gib_per_host,
        host_per_rank=kv_host_gib_per_rank,
        disk_per_host=kv_disk_gib_per_host,
        disk_path=kv_disk_path,
        shared_per_host=kv_shared_gib_per_host,
        shared_url=kv_shared_url,
    )
    engine = parse_config(
        EngineConfig,
        {
            "model": model,
            "served_model_name": served_model_name,
            "device": device,
            "dtype": dtype,
            "kernels": kernels,
            "seed": seed,
            "threads": threads,
            "max_model_len": max_model_len,
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "max_num_queued_reqs": max_num_queued_reqs,
            "kv": {
                "block_tokens": block_size,
                "prefix_caching": enable_prefix_caching,
                "memory_bytes": None if kv_cache_memory_bytes is None else parse_bytes(kv_cache_memory_bytes),
                "retention_interval": parse_interval(prefix_cache_retention_interval),
                "match_tokens": prefix_match_unit,
                "tiers": tiers,
                "tier_eviction": kv_tier_eviction,
                "tier_admit_after": kv_tier_admit_after,
                "tier_store": kv_tier_store,
                "tier_load": kv_tier_load,
            },
        },
    )
    power = PowerConfig(
        cap=None if power_cap in (None, "auto") else parse_watts(power_cap),
        sm_clock=None if sm_clock is None else parse_hertz(sm_clock),
    )
    request = ServeRequest(
        engine=engine,
        power=power,
        power_auto=power_cap == "auto",
        slos=tuple(slo or ()),
        host=host,
        port=port,
        api_key=api_key,
        tenants={} if api_keys is None else read_keys(api_keys),
        meter=meter,
        idle_energy=idle_energy,
        reservations=_shares(reservation or []),
        footprint=footprint_config(pue, grid_intensity, electricity_price, currency),
    )
    console = message_console()
    run_service(request, notify=lambda line: console.print(line, markup=False, soft_wrap=True))


def _shares(entries: list[str]) -> dict[str, float]:
    """``["a=0.5"]`` -> ``{"a": 0.5}``. Raises ConfigError; whether the shares are allowed is the policy's to say."""
    shares: dict[str, float] = {}
    for entry in entries:
        tenant, _, share = entry.partition("=")
        try:
            shares[tenant] = float(share)
        except ValueError as error:
            raise ConfigError(f"--reservation {entry!r} is not allowed: expected TENANT=SHARE.") from error
    return shares
