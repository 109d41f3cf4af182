"""Power-cap sweeps: from the uncapped row of a series to every other cap.

The uncapped row gives speed, watts and clock; all else follows from the GPU's clock constants. Such a sweep is of
decode, so the work is memory time with host overhead around it; nothing about the model is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from energyopt.core.config import ParallelLayout, PowerConfig
from energyopt.core.errors import ConfigError
from energyopt.core.units import Watts

from .constants import Constants
from .hardware import Gpu, load_gpu
from .machine import Load, Machine
from .mlenergy import read_rows
from .models import load_model_spec

HOST_SHARE = 0.3
"""Share of a decode iteration that is neither memory nor compute: what the dense tables give at small batch."""


@dataclass(frozen=True, slots=True)
class CapRow:
    """One measured cap. ``clock`` is None where the table does not say."""

    gpu: Gpu
    series: str
    cap: float
    rate: float
    watts: float
    clock: float | None


@dataclass(frozen=True, slots=True)
class CapPrediction:
    """A row and what the model says of it; the anchor's own row is exact by construction."""

    row: CapRow
    rate: float
    watts: float
    clock: float
    anchor: bool


def read_sweep(path: Path) -> list[CapRow]:
    """Rows of a sweep file. Raises ConfigError for a missing column or an unknown GPU."""
    rows = []
    for row in read_rows(path):
        try:
            clock = float(row["mean_sm_mhz"]) * 1e6 if row.get("mean_sm_mhz") else None
            rows.append(
                CapRow(
                    gpu=load_gpu(gpu_name(row["gpu"])),
                    series=f"{row['gpu'].split('(')[0].strip()} {row['model']} N={row['concurrency']}",
                    cap=float(row["power_cap_w"]),
                    rate=float(row["tok_s"]),
                    watts=float(row["mean_power_w"]),
                    clock=clock,
                )
            )
        except KeyError as error:
            raise ConfigError(f"The file {path} has no column {error.args[0]!r}.") from error
        except ValueError as error:
            raise ConfigError(f"The file {path} has a row that is not a number where one must be: {error}.") from error
    return rows


def gpu_name(text: str) -> str:
    """The file name of a GPU in the words of a table: ``RTX PRO 6000 Blackwell ... (600 W)`` -> ``rtx-pro-6000``."""
    words = text.lower().replace("nvidia ", "").split("(")[0].split()
    return "-".join(words[:3]) if words[:1] == ["rtx"] else words[0]


def predict_sweep(rows: Sequence[CapRow], constants: Constants) -> list[CapPrediction]:
    """Every series from its highest cap."""
    found: list[CapPrediction] = []
    ordered = sorted(rows, key=lambda row: (row.series, -row.cap))
    for _, group in groupby(ordered, key=lambda row: row.series):
        series = list(group)
        load, scale = _calibrated(series[0], constants)
        for row in series:
            cost = _machine(row.gpu, constants, row.cap).settle(load)
            found.append(CapPrediction(row, scale / cost.seconds, cost.watts, cost.clock, row is series[0]))
    return found


def _machine(gpu: Gpu, constants: Constants, cap: float) -> Machine:
    limit = min(max(cap, gpu.value("cap_min")), gpu.value("tdp"))
    return Machine(
        load_model_spec("llama-3.1-8b"), gpu, ParallelLayout(), constants, PowerConfig(cap=Watts(limit), sm_clock=None)
    )


def _calibrated(anchor: CapRow, constants: Constants) -> tuple[Load, float]:
    """The load whose settled draw is the anchor's, found by bisection, and the tokens an iteration of it stands for."""
    machine = _machine(anchor.gpu, constants, anchor.cap)
    low, high = 0.0, 4.0 * anchor.gpu.value("tdp")
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if machine.settle(_load(middle)).watts < anchor.watts else (low, middle)
    load = _load(low)
    return load, anchor.rate * machine.settle(load).seconds


def _load(joules: float) -> Load:
    """One second of decode at the highest clock."""
    return Load(
        compute=0.0,
        memory=1.0 - HOST_SHARE,
        other=0.0,
        host=HOST_SHARE,
        stall=0.0,
        byte_joules=joules,
        flop_joules=0.0,
        link_joules=0.0,
    )
