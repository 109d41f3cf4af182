"""Check and time every kernel on the GPU of this machine: error, share of the physical limit, joules a token.

    python tests/bench/kernels.py [--only NAME ...] [--out docs/measurements] [--no-step] [--budget 340] [--dry]

Each named use is compared with its plain twin on fresh random inputs, in its own format and in float32. Then it is
timed at full size, with the second-level cache cleared before each run, and set against what this device does in the
same minute: a device-to-device copy and a bf16 product. Uses that have a goal come first; then a whole decode step at
the shape of Llama-3.1-8B with random weights, captured as a graph, for at least five seconds a batch; then the other
uses, as far as the budget of seconds goes. Clocks and power limits are not touched.

A use that fails is a line of the report, and the others follow. ``--dry`` walks through the same code on a CPU,
interpreted and at tiny sizes; its figures mean nothing, its report says so, and no goal applies. Exit code 0: all goals
met; 1: a goal missed, an error too large, a use that failed or had no time left; 2: no GPU found.
"""

# ruff: noqa: E402 (the search path and the interpreter have to be put right before the imports)
from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

HERE, ROOT = Path(__file__).resolve().parent, Path(__file__).resolve().parent.parent.parent
# This file has the name of the package that it measures, so its own folder must not be searched first.
sys.path[:] = [str(ROOT), *(entry for entry in sys.path if Path(entry or ".").resolve() != HERE)]
if "--dry" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.cases.decode_step import DecodeStep
from kernels.cases.measuring import (
    GOALS,
    Ceilings,
    Row,
    attempt,
    check,
    measure,
    measure_ceilings,
    name_of,
)
from kernels.cases.report import sentence, write_report
from kernels.cases.work import Case, Maker
from tests.bench.kernel_session import Session, facts_of, open_session, release, wait

STEP_GOAL = 1.25
"""A decode step may take this many times what its bytes take at the copy's bandwidth."""

SDPA_GOAL = 0.9
"""Prefill must reach this share of the speed of torch's flash attention."""

COUNTER_SECONDS = 0.1
"""NVML's energy counter stands still for up to so long, at either end of a window."""

BUDGET_SECONDS = 340.0
"""For everything: under six minutes with the start of Python."""

USE_SECONDS = 12.0
"""What one use may take: two compilations, its twin on the CPU and half a second of runs."""


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def rows_of_use(session: Session, ceilings: Ceilings, case: Case, dtype: torch.dtype) -> list[Row]:
    """Error of one use, and its speed where ``dtype`` is the first of its formats."""
    if not session.has_time(USE_SECONDS):
        return [Row(case.name, name_of(dtype), ok=False, note="not run: the budget of seconds is used up")]
    rows = [attempt(case.name, dtype, lambda: check(case, dtype, session.place))]
    if rows[0].error is None or (dtype != case.dtypes[0] and not session.dry):
        return rows
    rows.append(attempt(case.name, dtype, lambda: measure(case, dtype, session.place, ceilings)))
    if case.name == "paged_prefill" and rows[-1].seconds is not None:
        ours = rows[-1].seconds
        rows.append(attempt(f"{case.name} beside torch flash", dtype, lambda: beside_flash(session, ours)))
    return rows


def kernel_rows(session: Session, ceilings: Ceilings, uses: Sequence[tuple[Case, torch.dtype]]) -> list[Row]:
    """Error and speed of named uses: checked in their first format and in float32, timed in the first."""
    rows: list[Row] = []
    for case, dtype in uses:
        if dtype not in (case.dtypes[0], torch.float32) and not session.dry:
            continue
        found = rows_of_use(session, ceilings, case, dtype)
        release(session)
        for row in found:
            say(sentence(row))
        rows += found
    return rows


def beside_flash(session: Session, ours: float) -> Row:
    """Prefill of 8192 tokens through torch's flash attention, whose keys need not be gathered from pages. Raises
    RuntimeError where torch has none for this device."""
    tokens, (heads, kv_heads) = (16, (2, 1)) if session.dry else (8192, (32, 8))
    kind = torch.float32 if session.dry else torch.bfloat16
    device = session.place.device
    query = torch.randn(1, heads, tokens, 128, device=device, dtype=kind)
    keys, values = (torch.randn(1, kv_heads, tokens, 128, device=device, dtype=kind) for _ in range(2))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # else torch is free to choose another one
        theirs = session.place.timer.seconds(
            lambda: functional.scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True)
        )
    share = theirs / ours
    return Row(
        "paged_prefill beside torch flash", str(kind).removeprefix("torch."), seconds=theirs, bound="flash",
        share=share, goal=None if session.dry else SDPA_GOAL, ok=session.dry or share >= SDPA_GOAL,
    )  # fmt: skip


def step_row(session: Session, ceilings: Ceilings, batch: int) -> Row:
    """A captured step: its time beside the bandwidth floor, and joules a token over the whole window."""
    device = session.place.device
    kind = torch.float32 if session.dry else torch.bfloat16
    maker = Maker(device, kind, session.place.arch, torch.Generator(device).manual_seed(1))
    step = DecodeStep(maker, session.shape, batch, session.context)
    replay = captured(step, session)
    seconds, joules, runs = windowed(replay, session)
    ratio = seconds * ceilings.copy / step.least_bytes
    energy = "no energy counter" if joules is None else joules_per_token(joules, seconds * runs, runs * batch)
    goal = None if session.dry else 1 / STEP_GOAL
    return Row(
        f"decode step, batch {batch}", str(kind).removeprefix("torch."), seconds=seconds, bound="memory",
        share=1 / ratio, goal=goal, ok=goal is None or ratio <= STEP_GOAL, note=energy,
    )  # fmt: skip


def joules_per_token(joules: float, window: float, tokens: int) -> str:
    """With the error that the counter's pace makes at both ends of the window."""
    error = joules * 2 * COUNTER_SECONDS / window
    return f"{joules / tokens:.4f} ± {error / tokens:.4f} J/token (NVML counter, {window:.1f} s)"


def windowed(replay: Callable[[], Any], session: Session) -> tuple[float, float | None, int]:
    """Seconds of a run, joules of the whole window (None: no counter) and how many runs it held."""
    wait(session)
    started, before, runs = time.monotonic(), session.counter.joules(), 0
    while runs == 0 or time.monotonic() - started < session.window:
        for _ in range(session.burst):
            replay()
        wait(session)
        runs += session.burst
    after, seconds = session.counter.joules(), (time.monotonic() - started) / runs
    return seconds, None if before is None or after is None else after - before, runs


def captured(step: DecodeStep, session: Session) -> Callable[[], Any]:
    """The step as a graph; on a CPU the step itself."""
    if session.dry:
        return step.run
    side: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            step.run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.run()
    return graph.replay


def run_all(session: Session, options: argparse.Namespace) -> int:
    facts = facts_of(session)
    ceilings = measure_ceilings(session.place)
    product = f"bf16 product {ceilings.product / 1e12:.0f} TFLOP/s"
    say(f"{facts['device']}: copy {ceilings.copy / 1e12:.2f} TB/s, {product}")
    uses = list(session.place.uses(options.only))
    rows = kernel_rows(session, ceilings, [use for use in uses if use[0].name in GOALS])
    for batch in (1, 64) if options.step else ():
        kind, size = torch.float32 if session.dry else torch.bfloat16, 2 if session.dry and batch > 1 else batch
        rows.append(attempt(f"decode step, batch {size}", kind, partial(step_row, session, ceilings, size)))
        say(sentence(rows[-1]))
        release(session)
    rows += kernel_rows(session, ceilings, [use for use in uses if use[0].name not in GOALS])
    say(f"written: {write_report(options.out, facts, ceilings, rows, session.dry)}")
    missed = [row for row in rows if not row.ok]
    for row in missed:
        say(f"missed: {sentence(row)}")
    return 1 if missed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", help="names of uses; all by default")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "measurements", help="folder of the report")
    parser.add_argument("--no-step", dest="step", action="store_false", help="leave the whole decode step out")
    parser.add_argument("--budget", type=float, default=BUDGET_SECONDS, help="seconds after which no use begins")
    parser.add_argument("--dry", action="store_true", help="walk through the code on a CPU; measures nothing")
    options = parser.parse_args(arguments)
    session = open_session(options.dry)
    if session is None:
        say("no GPU found: nothing was measured and nothing written")
        return 2
    limit = float("inf") if options.dry else time.monotonic() + options.budget
    return run_all(dataclasses.replace(session, deadline=limit), options)


if __name__ == "__main__":
    sys.exit(main())
