"""Which operators an engine computes with: by name, by device and model, and by what was measured on that device
before."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path

import torch

from energyopt.core.errors import ConfigError
from energyopt.core.places import data_folder
from kernels.choices import NOTHING, Choices
from kernels.demand import ANYTHING, Demand
from kernels.dispatch import KernelUnavailableError, Ops, select_ops
from kernels.platform import arch_of, triton_release
from kernels.table import Device, TableError, choices_of, mismatch, read_table
from kernels.tuning.space import permits

from .model.layers.latent import LatentSpec
from .model.spec import DecoderSpec

logger = logging.getLogger(__name__)


def choose_ops(
    name: str, device: torch.device, demand: Demand = ANYTHING, environ: Mapping[str, str] = os.environ
) -> Ops:
    """The operators called ``name`` for a model that asks ``demand``, launched as the user's table of this device says
    where there is one.

    Raises ConfigError for an implementation that cannot run here; the message lists those that can.
    """
    try:
        return select_ops(name, device, measured_choices(device, environ), demand)
    except KernelUnavailableError as error:
        raise ConfigError(str(error)) from error


def demand_of(spec: DecoderSpec, dtype: torch.dtype) -> Demand:
    """What a model asks of its operators. Ranks that split the heads leave their proportion as it is."""
    parts = [getattr(spec, one.name) for one in fields(spec)] if is_dataclass(spec) else []
    for part in parts:
        if isinstance(part, LatentSpec):
            return Demand(dtype, part.heads, 0, part.latent + part.rope, part.latent)
    heads, kv_heads, width = (getattr(spec, name, 0) for name in ("heads", "kv_heads", "head_dim"))
    return Demand(dtype, heads, kv_heads, width)


def measured_choices(device: torch.device, environ: Mapping[str, str]) -> Choices:
    """What ``energyopt kernels tune`` found on ``device``.

    A table that cannot be used is told in the log and left out: it is a cache, and without it the engine is only less
    well tuned.
    """
    if device.type == "cpu" or triton_release() is None:
        return NOTHING
    try:
        here = describe(device)
        path = table_path(here, environ)
        if not path.exists():
            return NOTHING
        table = read_table(path)
        if (problem := mismatch(table, here)) is not None:
            raise TableError(f"The table of kernels {path} is of no use: {problem}.")
        choices = choices_of(table, partial(permits, arch_of(device)))
    except (TableError, ConfigError, ValueError) as error:
        logger.warning("%s Launches are chosen without it; `energyopt kernels tune` writes a new one.", error)
        return NOTHING
    left = "" if table.complete else "; the search did not end, `energyopt kernels tune` goes on with it"
    logger.info("%d kernel launches as measured on %s (%s)%s", len(choices), table.date, path, left)
    return choices


def table_path(here: Device, environ: Mapping[str, str]) -> Path:
    """Where the table of a device lies. Raises ConfigError if the user has no folder for data."""
    words = "-".join((here.device, here.architecture, "triton", here.triton)).lower()
    name = "".join(letter if letter.isalnum() or letter in ".-_" else "-" for letter in words)
    return data_folder(environ) / "kernels" / f"{name.lstrip('.')}.json"


def describe(device: torch.device, driver: str = "unknown") -> Device:
    """What a measurement on ``device`` depends on. Raises UnsupportedDeviceError for one that no kernel runs on."""
    return Device(
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        architecture=arch_of(device).name,
        driver=driver,
        triton=triton_release() or "none",
    )
