"""``energyopt serve``: the OpenAI-compatible service, under a power cap if one is given."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from energyopt.compose.service import ServeRequest, run_service
from energyopt.core.config import EngineConfig, PowerConfig, parse_config
from energyopt.core.units import parse_bytes, parse_hertz, parse_watts

from .output import message_console


def serve(
    model: Annotated[str, typer.Argument(help="Alias (smollm2-135m), GGUF file or Hugging Face directory.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    served_model_name: Annotated[str | None, typer.Option(help="Name in the API; default: the model's.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="ENERGYOPT_API_KEY", help="Clients must send it.")] = None,
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
    meter: Annotated[
        Literal["auto", "nvml", "rapl", "estimated", "none"], typer.Option(help="Where joules come from.")
    ] = "auto",
    power_cap: Annotated[str | None, typer.Option(help="Cap of each device, such as 300W; put back at exit.")] = None,
    sm_clock: Annotated[str | None, typer.Option(help="SM clock of each device, such as 1.2GHz; put back.")] = None,
) -> None:
    """Serve a model over HTTP (OpenAI's API), with joules in every reply where this machine can tell them."""
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
            },
        },
    )
    power = PowerConfig(
        cap=None if power_cap is None else parse_watts(power_cap),
        sm_clock=None if sm_clock is None else parse_hertz(sm_clock),
    )
    request = ServeRequest(engine=engine, power=power, host=host, port=port, api_key=api_key, meter=meter)
    console = message_console()
    run_service(request, notify=lambda line: console.print(line, markup=False, soft_wrap=True))
