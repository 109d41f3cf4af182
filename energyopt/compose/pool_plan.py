"""Which engine each process of the pools runs, on which devices, and with how much of the host."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from energyopt.core.config import KvTransferConfig, ParallelLayout, PowerConfig
from energyopt.core.layouts import check_pool_layout
from engine.models import choose_device, usable_threads

from .service import ServeRequest


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """What one process is asked, and what its environment says beside."""

    request: ServeRequest
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """A plan for each engine. ``note`` says what the user should know."""

    engines: tuple[EnginePlan, ...]
    note: str = ""


def plan_workers(serve: ServeRequest, layouts: Sequence[ParallelLayout]) -> WorkerPlan:
    """An engine for each of ``layouts``: devices of its own where there are enough, else a share of the one there is.

    Engines that share a device measure nothing: each would take the whole device's joules for its own requests.
    Raises ConfigError for a layout whose blocks are not handed over.
    """
    for layout in layouts:
        check_pool_layout(layout)
    device, sizes = choose_device(serve.engine.device), [layout.devices for layout in layouts]
    alone = device.type == "cuda" and _enough(sizes)
    environments = _own_devices(sizes) if alone else [{} for _ in sizes]
    note = "" if alone else "energy: the engines share one device, so no joules are told apart by request"
    common = _common(serve, layouts, shares_host=not alone and device.type == "cpu")
    asked: dict[str, object] = {"host": "127.0.0.1", "port": 0, "power": PowerConfig()}
    if not alone:
        asked["meter"] = "none"
    engines = [
        EnginePlan(
            serve.model_copy(update={**asked, "engine": serve.engine.model_copy(update={**common, "layout": layout})}),
            environment,
        )
        for layout, environment in zip(layouts, environments, strict=True)
    ]
    return WorkerPlan(tuple(engines), note)


def occupied(layouts: Sequence[ParallelLayout]) -> int:
    """How many GPUs, from the first on, such engines occupy: those of all of them, or where they share those of one."""
    sizes = [layout.devices for layout in layouts]
    return sum(sizes) if _enough(sizes) else max(sizes)


def _enough(sizes: Sequence[int]) -> bool:
    return torch.cuda.device_count() >= sum(sizes)


def _common(serve: ServeRequest, layouts: Sequence[ParallelLayout], *, shares_host: bool) -> dict[str, object]:
    """What every engine is told alike, so that all of them mean the same by a block.

    An engine of one rank would compute by native kernels where it may, whose blocks no engine of several ranks reads.
    """
    engine, several = serve.engine, [layout.devices > 1 for layout in layouts]
    transfer = engine.kv_transfer or KvTransferConfig()
    told: dict[str, object] = {"kv_transfer": transfer.model_copy(update={"port": 0})}
    if shares_host:
        told["threads"] = max(1, usable_threads(engine) // len(layouts))
    if any(several) and not all(several) and engine.kernels == "auto" and choose_device(engine.device).type == "cpu":
        told["kernels"] = "torch"
    return told


def _own_devices(sizes: Sequence[int]) -> list[Mapping[str, str]]:
    """Environments in which each engine sees as many GPUs as its layout has ranks, none of them another's."""
    set_by_user = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = set_by_user.split(",") if set_by_user else [str(index) for index in range(torch.cuda.device_count())]
    ends = tuple(accumulate(sizes))
    return [{"CUDA_VISIBLE_DEVICES": ",".join(names[end - size : end])} for end, size in zip(ends, sizes, strict=True)]
