"""The options by which verbs that start an engine take KV tiers: host memory, disk, a shared pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import typer

from energyopt.core.units import Bytes, bytes_from_gibibytes

_PANEL = "KV tiers"

HostPerHost = Annotated[
    float | None,
    typer.Option("--kv-host-gib-per-host", rich_help_panel=_PANEL, help="Host tier: GiB of this host's memory."),
]
HostPerRank = Annotated[
    float | None,
    typer.Option("--kv-host-gib-per-rank", rich_help_panel=_PANEL, help="Host tier: GiB for each rank instead."),
]
DiskPerHost = Annotated[
    float | None,
    typer.Option("--kv-disk-gib-per-host", rich_help_panel=_PANEL, help="Disk tier: GiB of files, kept at exit."),
]
DiskPath = Annotated[
    str | None,
    typer.Option("--kv-disk-path", rich_help_panel=_PANEL, help="Folder of the disk tier. Default: the user's cache."),
]
SharedPerHost = Annotated[
    float | None,
    typer.Option(
        "--kv-shared-gib-per-host", rich_help_panel=_PANEL, help="Shared tier: GiB that this host lends to the pool."
    ),
]
SharedUrl = Annotated[
    str | None,
    typer.Option(
        "--kv-shared-url",
        rich_help_panel=_PANEL,
        help="Mooncake Store, such as mooncake://MASTER:50051?host=THIS_HOST.",
    ),
]
Eviction = Annotated[
    Literal["lru", "arc"],
    typer.Option("--kv-tier-eviction", rich_help_panel=_PANEL, help="What a full host tier drops."),
]
AdmitAfter = Annotated[
    int,
    typer.Option(
        "--kv-tier-admit-after", min=1, rich_help_panel=_PANEL, help="Keep a block once so many requests had it."
    ),
]
Store = Annotated[
    Literal["eager", "lazy"],
    typer.Option(
        "--kv-tier-store",
        rich_help_panel=_PANEL,
        help="Save blocks to tiers when they are full, or when the device is about to evict them.",
    ),
]
Load = Annotated[
    Literal["always", "faster", "cheaper"],
    typer.Option(
        "--kv-tier-load",
        rich_help_panel=_PANEL,
        help="Load what a tier has always, or only where that is faster, or costs fewer joules, than to compute.",
    ),
]


def tier_settings(options: Mapping[str, Any]) -> dict[str, object]:
    """All that ``KvConfig`` takes of tiers, from a verb's options by name (a Typer context's ``params``).

    A place without a size asks for the tier too, and is refused there.
    """
    per_host, path, url = options["kv_host_gib_per_host"], options["kv_disk_path"], options["kv_shared_url"]
    tiers = [
        _tier("host", per_host, options["kv_host_gib_per_rank"], None),
        _tier("disk", options["kv_disk_gib_per_host"], None, path),
        _tier("shared", options["kv_shared_gib_per_host"], None, url),
    ]
    how = {field: options[f"kv_{field}"] for field in ("tier_eviction", "tier_admit_after", "tier_store", "tier_load")}
    return {"tiers": [tier for tier in tiers if tier is not None], **how}


def _tier(kind: str, per_host: float | None, per_rank: float | None, path: str | None) -> dict[str, object] | None:
    if per_host is None and per_rank is None and path is None:
        return None
    return {"kind": kind, "bytes_per_host": _bytes(per_host), "bytes_per_rank": _bytes(per_rank), "path": path}


def _bytes(gibibytes: float | None) -> Bytes | None:
    return None if gibibytes is None else bytes_from_gibibytes(gibibytes)
