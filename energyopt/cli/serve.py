"""``energyopt serve``: the OpenAI-compatible service, under a power cap if one is given."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from api.keys import read_keys
from energyopt.compose.pools import PoolsRequest, run_pools
from energyopt.compose.service import ServeRequest, run_service
from energyopt.core.config import KernelsName, parse_config

from .account_options import ApiKeys, IdleEnergy, Reservation, shares
from .engine_options import engine_config
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
)
from .layout_options import ContextParallel, DataParallel, ExpertParallel, PipelineParallel, TensorParallel
from .output import METER_HELP, message_console
from .power_options import PowerCap, Slos, SmClock, power_asked
from .transfer_options import (
    Advertise,
    Decode,
    DecodeStages,
    DecodeTensor,
    Host,
    Lease,
    Peers,
    Policy,
    Pool,
    Port,
    Prefill,
    PrefillStages,
    PrefillTensor,
    Rebalance,
    Transport,
    asks_for_pools,
    pool_layouts,
)

PrefixCaching = Annotated[
    bool, typer.Option("--enable-prefix-caching/--no-enable-prefix-caching", help="Keep and reuse prefixes.")
]


def serve(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Alias (smollm2-135m), GGUF file or Hugging Face directory.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    served_model_name: Annotated[str | None, typer.Option(help="Name in the API; default: the model's.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="ENERGYOPT_API_KEY", help="Clients must send it.")] = None,
    api_keys: ApiKeys = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where the engine runs.")] = "auto",
    dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], typer.Option(help="Weights.")] = "auto",
    kernels: Annotated[KernelsName, typer.Option(help="Operator implementations.")] = "auto",
    enforce_eager: Annotated[
        bool, typer.Option("--enforce-eager", help="No CUDA or HIP graphs of decode steps.")
    ] = False,
    quantization: Annotated[
        Literal["auto", "none", "int8", "int4"], typer.Option(help="Weights: auto keeps a file's packed groups.")
    ] = "auto",
    tensor_parallel_size: TensorParallel = 1,
    pipeline_parallel_size: PipelineParallel = 1,
    decode_context_parallel_size: ContextParallel = 1,
    data_parallel_size: DataParallel = 1,
    enable_expert_parallel: ExpertParallel = False,
    seed: Annotated[int, typer.Option(help="Seed of sampling without a seed of its own.")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default: every core.")] = None,
    max_model_len: Annotated[int | None, typer.Option(min=1, help="Context limit; default: the model's.")] = None,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Requests in one step.")] = 64,
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="Tokens in one step.")] = 2048,
    max_num_queued_reqs: Annotated[int, typer.Option(min=1, help="Waiting requests before 503.")] = 1024,
    idle_sleep: Annotated[
        float | None, typer.Option(min=0.001, metavar="SECONDS", help="Give device memory back after so long idle.")
    ] = None,
    tool_call_parser: Annotated[str, typer.Option(help="Format of tool calls, such as hermes.")] = "auto",
    reasoning_parser: Annotated[str, typer.Option(help="Format of reasoning, such as qwen3.")] = "auto",
    speculative_config: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help='Guess tokens: {"method": "ngram"} or {"model": "a smaller one"}; default: none.'
        ),
    ] = None,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens in one KV block.")] = 16,
    enable_prefix_caching: PrefixCaching = True,
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
    kv_transfer: Transport = None,
    kv_transfer_host: Host = "127.0.0.1",
    kv_transfer_port: Port = 0,
    kv_transfer_advertise: Advertise = None,
    kv_transfer_peer: Peers = None,
    kv_transfer_pool: Pool = None,
    kv_lease_seconds: Lease = 30.0,
    kv_load_failure_policy: Policy = "recompute",
    prefill: Prefill = 0,
    decode: Decode = 0,
    prefill_tp: PrefillTensor = None,
    prefill_pp: PrefillStages = None,
    decode_tp: DecodeTensor = None,
    decode_pp: DecodeStages = None,
    rebalance: Rebalance = "off",
    meter: Annotated[str, typer.Option(metavar="KIND", help=METER_HELP)] = "auto",
    idle_energy: IdleEnergy = "separate",
    reservation: Reservation = None,
    pue: Pue = None,
    grid_intensity: Grid = None,
    electricity_price: Price = None,
    currency: Currency = "USD",
    power_cap: PowerCap = None,
    slo: Slos = None,
    sm_clock: SmClock = None,
) -> None:
    """Serve a model over HTTP (OpenAI's API), with joules in every reply where this machine can tell them."""
    pools = asks_for_pools(prefill, decode)
    engine = engine_config(context.params)
    layouts = pool_layouts(context.params, engine)
    power = power_asked(power_cap, sm_clock)
    request = parse_config(
        ServeRequest,
        {
            "engine": engine,
            "power": power.limits,
            "power_auto": power.auto,
            "slos": tuple(slo or ()),
            "host": host,
            "port": port,
            "api_key": api_key,
            "tenants": {} if api_keys is None else read_keys(api_keys),
            "meter": meter,
            "idle_energy": idle_energy,
            "reservations": shares(reservation or []),
            "footprint": footprint_config(pue, grid_intensity, electricity_price, currency),
        },
    )
    if pools:
        sizes = {"prefill": prefill, "decode": decode, "rebalance": rebalance}
        run_pools(parse_config(PoolsRequest, {"serve": request, **sizes, **layouts}), notify=_tell)
    else:
        run_service(request, notify=_tell)


def _tell(line: str) -> None:
    message_console().print(line, markup=False, soft_wrap=True)
