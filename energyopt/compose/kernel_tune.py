"""``kernels tune``: the device, its meter and its table around the search for the best launches."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch

from energyopt.core.clock import Clock, MonotonicClock
from energyopt.core.errors import ConfigError, ModelFormatError
from energyopt.core.results import total_energy
from energyopt.core.units import Seconds
from engine.files import read_json
from engine.models import choose_device, choose_dtype
from engine.operators import describe, table_path
from engine.runner import device_identity
from kernels.choices import Problem
from kernels.platform import UnsupportedDeviceError, arch_of, triton_fault
from kernels.table import Device, Entry, EntryEnergy, Table, TableError, mismatch, read_table, write_table
from kernels.tuning.objective import Objective
from kernels.tuning.ports import Bench, Energy
from kernels.tuning.problems import ModelShape, problems_of
from kernels.tuning.tuner import Effort, Failure, Found, Progress, Skipped, Tuner
from telemetry.meter import Meter

from .host_meter import await_sensors
from .meters import find_meter

NO_GPU = (
    "There is no GPU here, and launches are chosen for one: `energyopt kernels tune` runs where the engine will. "
    "What runs on this machine is `energyopt kernels check`, which compares every kernel with its plain twin."
)


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """``model`` is a directory with a config.json (None: Llama-3.1-8B's shape), of which each of
    ``tensor_parallel_size`` ranks computes a part. ``fresh`` forgets the table that is there; else what it has is kept.
    ``seconds`` is the length of one window."""

    model: Path | None = None
    dtype: Literal["auto", "bfloat16", "float16"] = "auto"
    objective: Objective = "energy"
    meter: str = "auto"
    seconds: float = 5.0
    out: Path | None = None
    fresh: bool = False
    tensor_parallel_size: int = 1
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)


@dataclass(frozen=True, slots=True)
class TuneReport:
    """The table that was written, what could not be measured, the plans that failed, and sentences about the
    sensors."""

    path: Path
    table: Table
    skipped: tuple[Skipped, ...]
    failures: tuple[tuple[Problem, Failure], ...]
    notes: tuple[str, ...]

    def document(self) -> dict[str, object]:
        return {
            "path": str(self.path),
            "table": self.table.model_dump(mode="json"),
            "skipped": [{"problem": str(one.problem), "reason": one.reason} for one in self.skipped],
            "failed": [
                {"problem": str(problem), "plan": str(failure.plan), "reason": failure.reason}
                for problem, failure in self.failures
            ],
            "notes": list(self.notes),
        }


def tune_kernels(request: TuneRequest, on_progress: Callable[[Progress], None]) -> TuneReport:
    """Measure on this machine's GPU and write its table; the engine loads it at its next start.

    A table that is being written is kept after each problem: interrupted, the same command goes on from there. Raises
    ConfigError without a GPU or on one that is too old, for a model of no known shape or one that does not split over
    the ranks, or for a file that cannot be read or written.
    """
    device = choose_device("auto")
    if device.type == "cpu":
        raise ConfigError(NO_GPU)
    clock = MonotonicClock()
    found = find_meter(request.meter, (device_identity(device),), clock)
    driver = next((status.info.driver for status in found.statuses if status.info.driver), None)
    try:
        here = describe(device, driver or "unknown")
    except UnsupportedDeviceError as error:
        raise ConfigError(str(error)) from error
    if (fault := triton_fault()) is not None:
        raise ConfigError(f"There are no kernels to tune here: {fault}.")
    shape, dtype = rank_shape(request), str(choose_dtype(request.dtype, device)).removeprefix("torch.")
    with Meter(found.sources, clock, found.reasons, statuses=found.statuses) as meter:
        await_sensors(meter, clock)
        bench = _open_bench(device, meter, clock)
        report = search(bench, request, here, shape, dtype, clock, on_progress)
        return replace(report, notes=meter.reasons)


def _open_bench(device: torch.device, meter: Meter, clock: Clock) -> Bench:
    """The real device; its module needs Triton, which a machine without a GPU may lack."""

    def energy(start: float, end: float) -> Energy | None:
        total = total_energy(meter.readings(Seconds(start), Seconds(end)))
        return None if total is None or total.joules <= 0 else Energy(total.joules, total.error, total.label)

    bench: Bench = importlib.import_module("kernels.tuning.torch_bench").TorchBench(
        device, arch_of(device), energy if meter.channels else None, clock.now
    )
    return bench


def search(
    bench: Bench,
    request: TuneRequest,
    here: Device,
    shape: ModelShape,
    dtype: str,
    clock: Clock,
    on_progress: Callable[[Progress], None],
) -> TuneReport:
    """Search on ``bench`` and write the table of the device ``here``. Raises ConfigError for a table of another."""
    path = request.out or table_path(here, request.environ)
    objective: Objective = request.objective if bench.has_joules else "time"
    table = _begin(path, here, objective, clock.utc().date().isoformat(), fresh=request.fresh)
    entries = {entry.problem: entry for entry in table.entries}
    failures: list[tuple[Problem, Failure]] = []

    def keep(found: Found) -> None:
        failures.extend((found.problem, failure) for failure in found.failures)
        entries[found.problem] = entry_of(found)
        _write(path, table.with_entries(entries.values(), complete=False))

    problems = problems_of(shape, dtype)
    skipped = Tuner(bench, objective, Effort(seconds=request.seconds), on_progress).tune(problems, entries, keep)
    table = table.with_entries(entries.values(), complete=not skipped)
    _write(path, table)
    return TuneReport(path, table, tuple(skipped), tuple(failures), ())


def _begin(path: Path, here: Device, objective: Objective, date: str, *, fresh: bool) -> Table:
    """The table at ``path``, to go on with, or an empty one."""
    empty = Table(measured=here, objective=objective, date=date, complete=False)
    if fresh or not path.exists():
        return empty
    try:
        table = read_table(path)
    except TableError as error:
        raise ConfigError(f"{error} --fresh begins a new one.") from error
    if (problem := mismatch(table, here)) is not None:
        raise ConfigError(f"The table {path} is of another machine: {problem}. --fresh begins a new one.")
    if table.objective != objective:
        raise ConfigError(f"The table {path} is for {table.objective}, not {objective}. --fresh begins a new one.")
    return table


def _write(path: Path, table: Table) -> None:
    try:
        write_table(path, table)
    except TableError as error:
        raise ConfigError(str(error)) from error


def entry_of(found: Found) -> Entry:
    """What the table keeps of a search."""
    shape = found.problem.shape
    return Entry(
        op=found.problem.op,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        width=shape.width,
        dtype=shape.dtype,
        windowed=shape.windowed,
        rows=found.problem.rows,
        length=found.problem.length,
        plan=found.plan.as_dict(),
        seconds=found.series.seconds,
        energy=_kept(found.series.energy),
        default_seconds=found.default.seconds,
        default_energy=_kept(found.default.energy),
        tried=found.tried,
        failed=len(found.failures),
    )


def _kept(energy: Energy | None) -> EntryEnergy | None:
    return None if energy is None else EntryEnergy(joules=energy.joules, error=energy.error, source=energy.source)


def rank_shape(request: TuneRequest) -> ModelShape:
    """What the kernels of one rank depend on. Raises ConfigError for heads that do not split."""
    try:
        return model_shape(request.model).of_rank(request.tensor_parallel_size)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def model_shape(model: Path | None) -> ModelShape:
    """What the kernels of a model depend on, from its config.json. Raises ConfigError where it does not say."""
    if model is None:
        return ModelShape()
    try:
        config = read_json(model / "config.json")
    except ModelFormatError as error:
        raise ConfigError(str(error)) from error
    inner = config.get("text_config")
    config = inner if isinstance(inner, dict) else config
    heads, hidden = _count(config, "num_attention_heads"), _count(config, "hidden_size")
    if config.get("kv_lora_rank"):
        return ModelShape(heads, 0, _count(config, "kv_lora_rank") + _count(config, "qk_rope_head_dim"), hidden)
    kv_heads = _count(config, "num_key_value_heads") if config.get("num_key_value_heads") else heads
    head_dim = _count(config, "head_dim") if config.get("head_dim") else hidden // heads
    window = _count(config, "sliding_window") if config.get("sliding_window") else 0
    return ModelShape(heads, kv_heads, head_dim, hidden, window)


def _count(config: Mapping[str, object], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= 1 << 20:
        raise ConfigError(f"config.json has {name} = {value!r}; expected a whole number from 1 to 1048576.")
    return value
