"""The options by which an engine hands prompts over to others, and by which ``serve`` starts two pools of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import typer

from energyopt.core.config import EngineConfig, ParallelLayout
from energyopt.core.errors import ConfigError
from energyopt.core.layouts import pool_layout

_HAND_OVER, _POOLS = "KV hand-over", "Prefill and decode pools"

Prefill = Annotated[
    int,
    typer.Option("--prefill", min=0, max=64, rich_help_panel=_POOLS, help="Engines that compute prompts; 0: no pools."),
]
Decode = Annotated[
    int,
    typer.Option("--decode", min=0, max=64, rich_help_panel=_POOLS, help="Engines that compute the answers."),
]
PrefillTensor = Annotated[
    int | None,
    typer.Option("--prefill-tp", min=1, rich_help_panel=_POOLS, help="Ranks that split heads there. Default: -tp."),
]
PrefillStages = Annotated[
    int | None,
    typer.Option("--prefill-pp", min=1, rich_help_panel=_POOLS, help="Stages that split layers there. Default: -pp."),
]
DecodeTensor = Annotated[
    int | None,
    typer.Option("--decode-tp", min=1, rich_help_panel=_POOLS, help="Ranks that split heads there. Default: -tp."),
]
DecodeStages = Annotated[
    int | None,
    typer.Option("--decode-pp", min=1, rich_help_panel=_POOLS, help="Stages that split layers there. Default: -pp."),
]
Rebalance = Annotated[
    Literal["auto", "off"],
    typer.Option("--rebalance", rich_help_panel=_POOLS, help="Let engines change their role with the measured load."),
]
Transport = Annotated[
    Literal["shm", "tcp", "nixl", "mooncake"] | None,
    typer.Option("--kv-transfer", rich_help_panel=_HAND_OVER, help="Take kv_transfer_params; how KV blocks travel."),
]
Host = Annotated[
    str, typer.Option("--kv-transfer-host", rich_help_panel=_HAND_OVER, help="Where blocks are lent by TCP.")
]
Port = Annotated[
    int, typer.Option("--kv-transfer-port", min=0, max=65535, rich_help_panel=_HAND_OVER, help="0 takes a free one.")
]
Advertise = Annotated[
    str | None,
    typer.Option("--kv-transfer-advertise", rich_help_panel=_HAND_OVER, help="How peers reach this host; default: so."),
]
Peers = Annotated[
    list[str] | None,
    typer.Option("--kv-transfer-peer", rich_help_panel=_HAND_OVER, help="A host to fetch from; default: this one."),
]
Pool = Annotated[
    str | None,
    typer.Option("--kv-transfer-pool", rich_help_panel=_HAND_OVER, help="mooncake://MASTER:50051 for mooncake."),
]
Lease = Annotated[
    float,
    typer.Option("--kv-lease-seconds", min=1, max=480, rich_help_panel=_HAND_OVER, help="Time to fetch, or to beat."),
]
Policy = Annotated[
    Literal["recompute", "fail"],
    typer.Option("--kv-load-failure-policy", rich_help_panel=_HAND_OVER, help="What if blocks do not come."),
]


def transfer_settings(options: Mapping[str, Any]) -> dict[str, object] | None:
    """All that ``KvTransferConfig`` takes, from a verb's options by name; None without a transport, or pools."""
    transport = options.get("kv_transfer") or ("shm" if options.get("prefill") or options.get("decode") else None)
    if transport is None:
        return None
    settings: dict[str, object] = {
        "transport": transport,
        "host": options["kv_transfer_host"],
        "port": options["kv_transfer_port"],
        "advertise": options["kv_transfer_advertise"],
        "lease": options["kv_lease_seconds"],
        "failure_policy": options["kv_load_failure_policy"],
        "pool": options["kv_transfer_pool"],
    }
    peers = options["kv_transfer_peer"]
    return settings if not peers else {**settings, "peers": tuple(peers)}


def pool_layouts(options: Mapping[str, Any], engine: EngineConfig) -> dict[str, ParallelLayout]:
    """``prefill_layout`` and ``decode_layout`` of the pools, as far as they differ from the engine's.

    Raises ConfigError where they are named without pools.
    """
    found: dict[str, ParallelLayout] = {}
    for pool in ("prefill", "decode"):
        own = {name: options[f"{pool}_{name}"] for name in ("tp", "pp") if options[f"{pool}_{name}"] is not None}
        if own and not options["prefill"]:
            raise ConfigError(f"--{pool}-{next(iter(own))} needs pools: say --prefill and --decode.")
        if own:
            found[f"{pool}_layout"] = pool_layout(engine.layout, **own)
    return found


def asks_for_pools(prefill: int, decode: int) -> bool:
    """Raises ConfigError for one pool without the other."""
    if bool(prefill) != bool(decode):
        raise ConfigError(f"--prefill {prefill} with --decode {decode} is not allowed: both pools need at least 1.")
    return bool(prefill)
