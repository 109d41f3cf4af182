"""Which CPU this is and what it may draw: ``/proc/cpuinfo`` against a table of known parts."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from energyopt.core.errors import SensorUnavailableError

GENERIC_WATTS_PER_CPU = 3.5
"""Watts at full load per logical CPU of an unknown part.

Mean over six server generations of the SPECpower figures named in estimate.IDLE_SHARE.
"""
MAX_CPUINFO = 8 << 20


@dataclass(frozen=True, slots=True)
class CpuPart:
    """One row of the table. ``pattern`` matches the model name; ``model`` is vendor/family/models for masked names."""

    pattern: re.Pattern[str] | None
    model: str
    name: str
    watts: float
    cores: int
    threads: int
    source: str


@dataclass(frozen=True, slots=True)
class CpuPower:
    """What this machine's CPUs draw at full load, on what ground, and how many logical CPUs share it."""

    watts: float
    cpus: int
    basis: str


@dataclass(frozen=True, slots=True)
class CpuInfo:
    """What ``/proc/cpuinfo`` says."""

    vendor: str
    family: int
    model: int
    name: str
    cpus: int
    sockets: int
    smt: bool
    virtual: bool


def describe_cpu(path: Path) -> CpuPower:
    """The power of the CPUs listed in a ``cpuinfo`` file. Raises SensorUnavailableError if it cannot be read."""
    info = read_cpuinfo(path)
    part = find_part(info, load_parts())
    if part is None:
        basis = f"unknown CPU {info.name!r}, {GENERIC_WATTS_PER_CPU} W for each of {info.cpus} logical CPUs"
        return CpuPower(GENERIC_WATTS_PER_CPU * info.cpus, info.cpus, basis)
    # A virtual CPU is a hardware thread in every large cloud, whether or not the guest is told about siblings.
    whole = part.threads if info.virtual or info.smt else part.cores
    sockets = 1 if info.virtual else info.sockets
    share = info.cpus / whole if info.virtual else min(float(sockets), info.cpus / whole)
    unit = "threads" if whole == part.threads else "cores"
    basis = f"{info.name!r} taken as {part.name} ({part.watts:.0f} W TDP, {whole} {unit}), {info.cpus} of them here"
    return CpuPower(part.watts * share, info.cpus, basis)


@cache
def load_parts() -> tuple[CpuPart, ...]:
    """The table that ships with the package, in order of precedence."""
    text = files("telemetry").joinpath("data/cpu_tdp.csv").read_text(encoding="utf-8")
    return tuple(
        CpuPart(
            pattern=re.compile(row["pattern"], re.IGNORECASE) if row["pattern"] else None,
            model=row["model"],
            name=row["name"],
            watts=float(row["tdp_watts"]),
            cores=int(row["cores"]),
            threads=int(row["threads"]),
            source=row["source"],
        )
        for row in csv.DictReader(text.splitlines())
    )


def find_part(info: CpuInfo, parts: Iterable[CpuPart]) -> CpuPart | None:
    """By name first; then by vendor, family and model number, which hypervisors that mask the name let through."""
    listed = tuple(parts)
    by_name = (part for part in listed if part.pattern and part.pattern.search(info.name))
    by_model = (part for part in listed if part.model and _same_model(part.model, info))
    return next(by_name, None) or next(by_model, None)


def read_cpuinfo(path: Path) -> CpuInfo:
    """Parse a ``cpuinfo`` file; absent fields are taken as unknown."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_CPUINFO).decode("utf-8", "replace")
    except OSError as error:
        raise SensorUnavailableError(f"{path} could not be read, so the CPU is unknown: {error}.") from error
    entries = [_fields(block) for block in text.split("\n\n") if "processor" in block]
    if not entries:
        raise SensorUnavailableError(f"{path} names no processor, so the CPU is unknown.")
    first = entries[0]
    return CpuInfo(
        vendor=first.get("vendor_id", ""),
        family=_number(first.get("cpu family")),
        model=_number(first.get("model")),
        name=first.get("model name", "unnamed CPU"),
        cpus=len(entries),
        sockets=len({entry.get("physical id", "0") for entry in entries}),
        smt=_number(first.get("siblings")) > _number(first.get("cpu cores")),
        virtual="hypervisor" in first.get("flags", "").split(),
    )


def _fields(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else -1


def _same_model(model: str, info: CpuInfo) -> bool:
    """``AuthenticAMD/25/0-15``: vendor, family and an inclusive range of models."""
    vendor, family, models = model.split("/")
    low, _, high = models.partition("-")
    return vendor == info.vendor and int(family) == info.family and int(low) <= info.model <= int(high or low)
