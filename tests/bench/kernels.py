"""Check and time every kernel on the GPU of this machine: error, share of the physical limit, joules a token.

    python tests/bench/kernels.py [--only NAME ...] [--out docs/measurements] [--no-step]

First each named use is compared with its plain twin on fresh random inputs. Then it is timed at full size, with the
second-level cache cleared before each run, and set against what this device does in the same minute: a
device-to-device copy and a bf16 product. Last, a whole decode step at the shape of Llama-3.1-8B with random weights.
Clocks and power limits are read, never changed. Exit code 0: all goals met; 1: a goal missed or an error too large;
2: no GPU found.
"""

# ruff: noqa: E402 (the search path has to be put right before the imports)
from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE, ROOT = Path(__file__).resolve().parent, Path(__file__).resolve().parent.parent.parent
# This file has the name of the package that it measures, so its own folder must not be searched first.
sys.path[:] = [str(ROOT), *(entry for entry in sys.path if Path(entry or ".").resolve() != HERE)]

import torch
import triton
from torch.nn import functional

from kernels.cases import attention, dense
from kernels.cases.decode_step import DecodeStep, Shape
from kernels.cases.work import Case, Maker, Work, widened
from kernels.platform import Arch, arch_of

LIMITS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
GOALS = {  # share of the copy bandwidth ("memory") or of the bf16 product's rate ("matrix")
    "paged_decode": ("memory", 0.85),
    "mla_decode": ("memory", 0.70),
    "quant_vector_int4": ("memory", 0.75),
    "add_rms_norm": ("memory", 0.85),
    "rope_into_pages": ("memory", 0.85),
    "swiglu": ("memory", 0.85),
    "paged_prefill": ("matrix", 0.55),
}
STEP_GOAL = 1.25
SDPA_GOAL = 0.9
WINDOW_SECONDS = 5.0


@dataclass(frozen=True)
class Limits:
    """What the device was seen to do: bytes moved (read plus written) and operations, each a second."""

    copy: float
    product: float


@dataclass(frozen=True)
class Row:
    """One result; None where it does not apply. ``share`` is of the limit named by ``bound``."""

    name: str
    dtype: str
    error: float | None = None
    seconds: float | None = None
    bound: str | None = None
    share: float | None = None
    goal: float | None = None
    ok: bool = True
    note: str = ""


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def seconds_of(run: Callable[[], Any], budget: float = 0.6) -> float:
    """The median of repeated runs by device events, each after the second-level cache was overwritten."""
    flush = torch.empty(256 * 2**20, dtype=torch.int8, device="cuda")
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    taken: list[float] = []
    end = time.monotonic() + budget
    while time.monotonic() < end or len(taken) < 5:
        flush.zero_()
        before, after = torch.Event("cuda", enable_timing=True), torch.Event("cuda", enable_timing=True)
        before.record()
        run()
        after.record()
        torch.cuda.synchronize()
        taken.append(before.elapsed_time(after) / 1e3)
    return statistics.median(taken)


def measure_limits() -> Limits:
    source = torch.randn(2**29, device="cuda")
    target = torch.empty_like(source)
    copy = 2 * source.numel() * 4 / seconds_of(lambda: target.copy_(source))
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return Limits(copy, 2 * 8192**3 / seconds_of(lambda: a @ b))


def make_work(case: Case, dtype: torch.dtype, arch: Arch, small: bool) -> Work:
    device = torch.device("cuda")
    generator = torch.Generator(device).manual_seed(time.time_ns() % 2**31)
    return case.build(Maker(device, dtype, arch, generator), small)


def check(case: Case, dtype: torch.dtype, arch: Arch) -> Row:
    """The largest relative error over the operator's outputs."""
    work = make_work(case, dtype, arch, True)
    expected = work.twin(*[widened(argument) for argument in work.arguments])
    out = work.op(*work.arguments, arch=arch)
    errors = [
        float((ours.cpu().double() - twin.double()).norm() / twin.double().norm().clamp_min(1e-30))
        for ours, twin in zip(out, expected, strict=True)
        if twin.numel()
    ]
    worst = max(errors)
    return Row(case.name, str(dtype)[6:], error=worst, ok=worst < LIMITS[dtype])


def measure(case: Case, dtype: torch.dtype, arch: Arch, limits: Limits) -> Row:
    """Time at full size beside the nearer of the two physical limits."""
    work = make_work(case, dtype, arch, False)
    seconds = seconds_of(lambda: work.op(*work.arguments, arch=arch))
    memory, matrix = work.bytes / limits.copy, work.flops / limits.product
    bound, goal = GOALS.get(case.name, ("memory" if memory >= matrix else "matrix", None))
    share = (memory if bound == "memory" else matrix) / seconds
    met = goal is None or dtype != torch.bfloat16 or share >= goal
    return Row(case.name, str(dtype)[6:], seconds=seconds, bound=bound, share=share, goal=goal, ok=met)


def beside_flash(arch: Arch, ours: float) -> Row:
    """Prefill of 8192 tokens through torch's flash attention, whose keys need not be gathered from pages."""
    query = torch.randn(1, 32, 8192, 128, device="cuda", dtype=torch.bfloat16)
    keys, values = (torch.randn(1, 8, 8192, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    theirs = seconds_of(
        lambda: functional.scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True)
    )
    return Row(
        "paged_prefill beside torch flash", "bfloat16", seconds=theirs, bound="flash", share=theirs / ours,
        goal=SDPA_GOAL, ok=theirs / ours >= SDPA_GOAL,
    )  # fmt: skip


class EnergyCounter:
    """Joules since the driver was loaded, by NVML; None where there is no such counter."""

    def __init__(self) -> None:
        self._read: Callable[[], float] | None = None
        if torch.version.hip:
            return
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
        self.driver = str(pynvml.nvmlSystemGetDriverVersion())
        self._read = lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3

    driver = "unknown"

    def joules(self) -> float | None:
        return self._read() if self._read else None


def decode_steps(arch: Arch, limits: Limits, counter: EnergyCounter) -> list[Row]:
    """A captured step at batch 1 and 64: its time beside the bandwidth floor, and joules a token over at least 5 s."""
    rows = []
    for batch in (1, 64):
        maker = Maker(torch.device("cuda"), torch.bfloat16, arch, torch.Generator("cuda").manual_seed(1))
        step = DecodeStep(maker, Shape(), batch, 1024)
        graph = capture(step)
        started, before, runs = time.monotonic(), counter.joules(), 0
        while time.monotonic() - started < WINDOW_SECONDS:
            for _ in range(20):
                graph.replay()
            torch.cuda.synchronize()
            runs += 20
        seconds, after = (time.monotonic() - started) / runs, counter.joules()
        ratio = seconds * limits.copy / step.least_bytes
        energy = "" if before is None or after is None else f"{(after - before) / (runs * batch):.4f} J/token"
        rows.append(
            Row(f"decode step, batch {batch}", "bfloat16", seconds=seconds, bound="memory", share=1 / ratio,
                goal=1 / STEP_GOAL, ok=ratio <= STEP_GOAL, note=energy)
        )  # fmt: skip
        del graph, step
        torch.cuda.empty_cache()
    return rows


def capture(step: DecodeStep) -> torch.cuda.CUDAGraph:
    side: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            step.run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.run()
    return graph


def write_report(out: Path, facts: dict[str, str], limits: Limits, rows: Sequence[Row]) -> Path:
    """JSON for machines and Markdown for people; gives the latter's path."""
    out.mkdir(parents=True, exist_ok=True)
    stem = out / f"kernels-{facts['device'].replace(' ', '-').replace('/', '-').lower()}-{facts['date'][:10]}"
    document = {**facts, "limits": dataclasses.asdict(limits), "results": [dataclasses.asdict(row) for row in rows]}
    stem.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    lines = [f"# Kernels on {facts['device']}", "", *(f"- {key}: {value}" for key, value in facts.items())]
    lines += [
        f"- copy (read plus written): {limits.copy / 1e12:.2f} TB/s; bf16 product: {limits.product / 1e12:.0f} TFLOP/s"
    ]
    lines += ["", "| use | type | error | µs | limit | share | goal | |", "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        figures = (
            "" if row.error is None else f"{row.error:.1e}", "" if row.seconds is None else f"{row.seconds * 1e6:.1f}",
            row.bound or "", "" if row.share is None else f"{row.share:.0%}",
            "" if row.goal is None else f"{row.goal:.0%}",
        )  # fmt: skip
        lines.append(f"| {row.name} | {row.dtype} | {' | '.join(figures)} | {'' if row.ok else 'missed '}{row.note} |")
    report = stem.with_suffix(".md")
    report.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return report


def run_all(options: argparse.Namespace) -> int:
    arch, counter = arch_of(torch.device("cuda")), EnergyCounter()
    facts = {
        "device": torch.cuda.get_device_name(), "architecture": arch.name, "driver": counter.driver,
        "torch": torch.__version__, "triton": triton.__version__, "command": " ".join(sys.argv),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    limits = measure_limits()
    say(f"{facts['device']}: copy {limits.copy / 1e12:.2f} TB/s, bf16 product {limits.product / 1e12:.0f} TFLOP/s")
    rows: list[Row] = []
    for case in (*attention.CASES, *dense.CASES):
        if (options.only and case.name not in options.only) or (case.needs_fp8 and arch.fp8 is None):
            continue
        for dtype in case.dtypes:
            rows += [check(case, dtype, arch), measure(case, dtype, arch, limits)]
            say(f"{case.name} {rows[-1].dtype}: error {rows[-2].error:.1e}, {rows[-1].share:.0%} of {rows[-1].bound}")
            if case.name == "paged_prefill" and dtype == torch.bfloat16:
                rows.append(beside_flash(arch, rows[-1].seconds or float("inf")))
    if options.step:
        rows += decode_steps(arch, limits, counter)
    say(f"written: {write_report(options.out, facts, limits, rows)}")
    missed = [row for row in rows if not row.ok]
    for row in missed:
        say(f"missed: {row}")
    return 1 if missed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", help="names of uses; all by default")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "measurements", help="folder of the report")
    parser.add_argument("--no-step", dest="step", action="store_false", help="leave the whole decode step out")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        say("no GPU found: nothing was measured and nothing written")
        return 2
    return run_all(options)


if __name__ == "__main__":
    sys.exit(main())
