"""The published ML.ENERGY tables as cases: a model, a layout and a load, with what was measured.

The load is closed: ``max_num_seqs`` requests are always in flight. Prompt lengths are not published and are assumptions
(``Constants.workload``); how often a prompt repeats is (the same requests are sent again and again), so a device whose
cache holds the whole set computes each prompt once.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from energyopt.core.config import ParallelLayout
from energyopt.core.errors import ConfigError, NotFoundError

from .constants import Constants
from .hardware import Gpu, load_gpu
from .machine import Machine
from .memory import kv_tokens
from .models import ModelSpec, load_model_spec
from .work import StepShape

TASKS = {"lm-arena-chat": "chat", "gpqa": "gpqa", "sourcegraph-fim": "fim"}
PROMPT = {"chat": 215.0, "gpqa": 250.0, "fim": 1400.0}
"""Assumed mean prompt tokens. Chat and fim: cache that the device holds over the running requests, less their mean
output so far, where the published batch stays below its limit (chat: median of eleven rows). GPQA: by its questions.
"""
LONG_CONTEXT = 0.8
"""Assumed mean output so far over that of the length histogram, for GPQA: its windows open when all requests have just
begun, and at large batches the published value would not even fit the device.
"""
MISS = 1e-10
"""A fit takes differences of predictions: what is left of the search under a cap must be far below them, or it follows
the rounding of that search and ends elsewhere after the least change of anything.
"""
DISTINCT = {"chat": 1024, "gpqa": 198, "fim": 1024}
"""Distinct requests of a task, by the benchmark's documentation."""
_PRECISION = {"bfloat16": "bf16", "fp8": "fp8", "mxfp4": "mxfp4"}
_MAX_BYTES = 1 << 26

FILTER = (
    "text tasks; suspect_not_gpu_bound is False; no attention data-parallel rows; a model whose shape is known exactly"
)


@dataclass(frozen=True, slots=True)
class Case:
    """One published row. Measured figures are of the whole engine but for ``watts``, which is per GPU."""

    gpu: Gpu
    task: str
    model: str
    spec: ModelSpec
    layout: ParallelLayout
    devices: int
    max_num_seqs: int
    batch: float
    output_tokens: float
    context: float
    rate: float
    watts: float
    joules: float

    @property
    def family(self) -> str:
        """Models of one shape: left out together when a model counts as unseen."""
        return self.spec.name

    @property
    def series(self) -> str:
        """Rows that differ in the batch only."""
        return f"{self.gpu.name} {self.task} {self.model} x{self.devices} tp{self.layout.tp} ep{self.layout.ep}"

    @property
    def kind(self) -> str:
        return f"{self.gpu.name} {'moe' if self.spec.moe else 'dense'}"


@dataclass(frozen=True, slots=True)
class Prediction:
    """Tokens per second of the engine, watts per GPU, joules per output token."""

    rate: float
    watts: float
    joules: float


@dataclass(frozen=True, slots=True)
class Table:
    """The cases of a file and how many rows each reason removed."""

    cases: tuple[Case, ...]
    removed: Mapping[str, int]


def read_table(path: Path) -> Table:
    """All usable rows of a file of the ML.ENERGY v3 format. Raises ConfigError naming what is missing."""
    removed: Counter[str] = Counter()
    cases: list[Case] = []
    for row in read_rows(path):
        try:
            reason = _unusable(row)
            if reason is None:
                cases.append(_case(row))
                continue
        except NotFoundError:
            reason = "model or GPU without a description"
        except KeyError as error:
            raise ConfigError(f"The file {path} has no column {error.args[0]!r}.") from error
        except ValueError as error:
            raise ConfigError(f"The file {path} has a row that is not a number where one must be: {error}.") from error
        removed[reason] += 1
    return Table(tuple(cases), dict(removed))


def read_rows(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file with a header. Raises NotFoundError, ConfigError."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"The file {path} is longer than {_MAX_BYTES} bytes.")
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise NotFoundError(f"The file {path} cannot be read: {error.strerror}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"The file {path} is not a CSV file in UTF-8.") from error


def _unusable(row: Mapping[str, str]) -> str | None:
    if row["task"] not in TASKS:
        return "not a text task"
    if row["suspect_not_gpu_bound"] != "False":
        return "suspect: not GPU-bound" if row["suspect_not_gpu_bound"] else "not judged whether GPU-bound"
    if int(row["data_parallel"]) > 1:
        return "attention data parallel"
    if row["weight_precision"] not in _PRECISION:
        return "unknown weight precision"
    return None if row["mean_running_output_ctx"] else "context unknown"


def _case(row: Mapping[str, str]) -> Case:
    spec = load_model_spec(row["model_id"])
    spec = spec.model_copy(update={"precision": _PRECISION[row["weight_precision"]]})
    if spec.approximate:
        raise NotFoundError(f"The shape of {spec.name} is not exact.")
    return Case(
        gpu=load_gpu(row["gpu_model"].lower()),
        task=TASKS[row["task"]],
        model=row["model_id"],
        spec=spec,
        layout=ParallelLayout(tp=int(row["attn_tp_effective"]), ep=int(row["expert_parallel"])),
        devices=int(row["num_gpus"]),
        max_num_seqs=int(row["max_num_seqs"]),
        batch=float(row["avg_batch_size"]),
        output_tokens=float(row["avg_output_len"]),
        context=float(row["mean_running_output_ctx"]),
        rate=float(row["output_throughput_tok_s"]),
        watts=float(row["avg_power_w_per_gpu"]),
        joules=float(row["energy_per_output_token_j"]),
    )


def mean_step(case: Case, workload: Mapping[str, float]) -> StepShape:
    """The average iteration of a case: its decodes, and the prompt tokens that arrive per finished request."""
    prompt = workload.get(case.task, PROMPT[case.task])
    arriving = case.batch / case.output_tokens
    fresh = arriving * prompt * (1.0 - _repeated(case, prompt))
    return StepShape(
        decodes=case.batch,
        decode_context=_cached(case, prompt, workload),
        prefills=arriving,
        prefill_tokens=fresh,
        prefill_pairs=fresh * prompt / 2,
        prefill_context=fresh / 2,
        sampled=case.batch + arriving,
    )


def _cached(case: Case, prompt: float, workload: Mapping[str, float]) -> float:
    """Tokens in the cache over all running requests, and never more than it holds."""
    share = workload.get("gpqa_context", LONG_CONTEXT) if case.task == "gpqa" else 1.0
    return float(min(case.batch * (prompt + share * case.context), kv_tokens(case.spec, case.gpu, case.layout)))


def _repeated(case: Case, prompt: float) -> float:
    """Share of prompts found in the cache: only if it holds the whole set, and rising with the repeats of a run.

    A cyclic order under least-recently-used eviction hits always or never; the eighth power rounds that edge.
    """
    distinct = DISTINCT[case.task]
    needed = distinct * (prompt + case.output_tokens)
    held = 1.0 / (1.0 + (needed / max(kv_tokens(case.spec, case.gpu, case.layout), 1.0)) ** 8)
    return float(held * min(0.95, case.batch / distinct))


def predict(case: Case, constants: Constants) -> Prediction:
    """What the model says about a case."""
    machine = Machine(case.spec, case.gpu, case.layout, constants, miss=MISS)
    cost = machine.cost(mean_step(case, constants.workload))
    rate = case.batch / cost.seconds
    return Prediction(rate, cost.watts, cost.watts * case.devices / rate)


def kinds(cases: Iterable[Case]) -> tuple[str, ...]:
    """The (GPU, class) groups of cases, each with constants of its own, in order."""
    return tuple(sorted({case.kind for case in cases}))
