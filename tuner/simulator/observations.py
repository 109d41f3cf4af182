"""Measured runs as observations: rows of a table in steady state, and the own trials by event simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from energyopt.core.config import Deployment, ParallelLayout
from energyopt.core.errors import ConfigError
from energyopt.core.results import RunResult, Source
from energyopt.core.study import MeasurePlan, StudySpec, TrialRecord
from energyopt.core.workload import Workload

from .calibration import Metrics, Observation
from .constants import Constants
from .hardware import Gpu
from .machine import Machine
from .mlenergy import Case, predict, read_rows, read_table
from .models import load_model_spec, precision_of
from .planner import BUDGET
from .steady import Lengths, aggregated

COLUMNS = ("model", "tp", "batch", "prompt_tokens", "output_tokens", "tok_s")
OPTIONAL = ("ep", "precision", "cached", "watts_per_gpu", "tpot_ms")


def from_csv(path: Path, gpu: Gpu) -> list[Observation]:
    """Rows of the project's own format (``COLUMNS``, with ``OPTIONAL`` where known) or of the ML.ENERGY v3 format.

    ``batch`` is requests in flight per engine, ``tok_s`` output tokens per second of the engine. Raises ConfigError
    naming what is missing.
    """
    rows = read_rows(path)
    if rows and "energy_per_output_token_j" in rows[0]:
        return list(_published(path, gpu))
    missing = [name for name in COLUMNS if rows and name not in rows[0]]
    if missing or not rows:
        raise ConfigError(
            f"The file {path} has no column {(missing or COLUMNS)[0]!r}: it needs {', '.join(COLUMNS)}, "
            f"and may have {', '.join(OPTIONAL)}."
        )
    try:
        return [_row(number, row, gpu) for number, row in enumerate(rows, start=2)]
    except ValueError as error:
        raise ConfigError(f"The file {path} has a row that is not a number where one must be: {error}.") from error


def _published(path: Path, gpu: Gpu) -> Iterator[Observation]:
    for case in read_table(path).cases:
        if case.gpu.name != gpu.name:
            continue

        measured = {"tok_s": case.rate, "watts": case.watts}
        yield Observation(f"{case.series} b{case.max_num_seqs}", measured, partial(_of_case, case))


def _of_case(case: Case, constants: Constants) -> Metrics:
    found = predict(case, constants)
    return {"tok_s": found.rate, "watts": found.watts}


def _row(number: int, row: Mapping[str, str], gpu: Gpu) -> Observation:
    spec = load_model_spec(row["model"], precision_of(row.get("precision")))
    layout = ParallelLayout(tp=int(row["tp"]), ep=int(row.get("ep") or 1))
    prompt, output = (round(float(row[name])) for name in ("prompt_tokens", "output_tokens"))
    lengths = Lengths(prompt, output, float(row.get("cached") or 0))
    batch = int(row["batch"])
    measured = {"tok_s": float(row["tok_s"])}
    if row.get("watts_per_gpu"):
        measured["watts"] = float(row["watts_per_gpu"])
    if row.get("tpot_ms"):
        measured["tpot"] = float(row["tpot_ms"]) / 1e3

    def predicted(constants: Constants) -> Metrics:
        steady = aggregated(Machine(spec, gpu, layout, constants), lengths, batch, max(BUDGET, batch))
        return {"tok_s": steady.rate, "watts": steady.watts, "tpot": steady.iteration}

    return Observation(f"line {number}", measured, predicted)


Simulate = Callable[[Deployment, Workload, MeasurePlan, Constants], RunResult]
"""One deployment under one load with given constants; raises TrialError as an evaluator does."""


def from_trials(spec: StudySpec, trials: Sequence[TrialRecord], simulate: Simulate) -> list[Observation]:
    """Finished trials of a study: the same deployment and load through the simulator. Failed ones say nothing."""
    return [
        Observation(f"trial {trial.number}", metrics_of(trial.result), _replay(spec, trial, simulate))
        for trial in trials
        if trial.result is not None and trial.result.output_tokens > 0
    ]


def metrics_of(result: RunResult) -> dict[str, float]:
    """What a run says that the simulator predicts. Estimated joules are no measurement and are left out."""
    found = {"tok_s": result.output_rate}
    for name, metric, value in (("ttft_p90", "ttft", "p90"), ("tpot", "tpot", "mean")):
        if metric in result.latencies:
            found[name] = float(getattr(result.latencies[metric], value))
    measured = all(reading.source is not Source.ESTIMATED for reading in result.readings)
    if result.power_valid and result.readings and measured:
        found["watts"] = sum(r.joules / r.window for r in result.readings) / len(result.readings)
    return {name: value for name, value in found.items() if value > 0}


def _replay(spec: StudySpec, trial: TrialRecord, simulate: Simulate) -> Callable[[Constants], Metrics]:
    load = spec.verify_workload if trial.origin.verifies else spec.workload
    return lambda constants: metrics_of(simulate(trial.deployment, load, spec.plan, constants))
