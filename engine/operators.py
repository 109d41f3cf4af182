"""Which operators an engine computes with: by name, by device, and by what was measured on that device before."""

from __future__ import annotations

import importlib.metadata
import logging
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch

from energyopt.core.errors import ConfigError
from energyopt.core.places import data_folder
from kernels.choices import NOTHING, Choices
from kernels.dispatch import KernelUnavailableError, Ops, select_ops
from kernels.platform import arch_of
from kernels.table import Device, TableError, choices_of, mismatch, read_table
from kernels.tuning.space import permits

logger = logging.getLogger(__name__)


def choose_ops(name: str, device: torch.device, environ: Mapping[str, str] = os.environ) -> Ops:
    """The operators called ``name``, launched as the user's table of this device says where there is one.

    Raises ConfigError for an implementation that cannot run here; the message lists those that can.
    """
    try:
        return select_ops(name, device, measured_choices(device, environ))
    except KernelUnavailableError as error:
        raise ConfigError(str(error)) from error


def measured_choices(device: torch.device, environ: Mapping[str, str]) -> Choices:
    """What ``energyopt kernels tune`` found on ``device``.

    A table that cannot be used is told in the log and left out: it is a cache, and without it the engine is only less
    well tuned.
    """
    if device.type == "cpu":
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
    logger.info("%d kernel launches as measured on %s (%s)", len(choices), table.date, path)
    return choices


def table_path(here: Device, environ: Mapping[str, str]) -> Path:
    """Where the table of a device lies. Raises ConfigError if the user has no folder for data."""
    words = "-".join((here.device, here.architecture, "triton", here.triton)).lower()
    name = "".join(letter if letter.isalnum() or letter in ".-_" else "-" for letter in words)
    return data_folder(environ) / "kernels" / f"{name.lstrip('.')}.json"


def describe(device: torch.device, driver: str = "unknown") -> Device:
    """What a measurement on ``device`` depends on. Raises ValueError for an architecture that is not known."""
    return Device(
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        architecture=arch_of(device).name,
        driver=driver,
        triton=importlib.metadata.version("triton"),
    )
