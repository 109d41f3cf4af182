"""Check and time every kernel on the GPU of this machine: error, share of the physical limit, joules a token.

    python tests/bench/kernels.py [--only NAME ...] [--out docs/measurements] [--no-step] [--dry]

First each named use is compared with its plain twin on fresh random inputs, in its own format and in float32. Then it
is timed at full size, with the second-level cache cleared before each run, and set against what this device does in
the same minute: a device-to-device copy and a bf16 product. Last, a whole decode step at the shape of Llama-3.1-8B with
random weights, captured as a graph, for at least five seconds a batch. Clocks and power limits are read, never changed.

``--dry`` walks through the same code on a CPU, interpreted and at tiny sizes; its figures mean nothing, its report says
so, and no goal applies. Exit code 0: all goals met; 1: a goal missed or an error too large; 2: no GPU found.
"""

# ruff: noqa: E402 (the search path and the interpreter have to be put right before the imports)
from __future__ import annotations

import argparse
import dataclasses
import datetime
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE, ROOT = Path(__file__).resolve().parent, Path(__file__).resolve().parent.parent.parent
# This file has the name of the package that it measures, so its own folder must not be searched first.
sys.path[:] = [str(ROOT), *(entry for entry in sys.path if Path(entry or ".").resolve() != HERE)]
if "--dry" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import torch
import triton
from torch.nn import functional

from kernels.cases.decode_step import DecodeStep, Shape
from kernels.cases.measuring import Ceilings, GpuTimer, HostTimer, Place, Row, check, measure, measure_ceilings
from kernels.cases.work import Maker
from kernels.platform import INTERPRETER, arch_of

STEP_GOAL = 1.25
"""A decode step may take this many times what its bytes take at the copy's bandwidth."""

SDPA_GOAL = 0.9
"""Prefill must reach this share of the speed of torch's flash attention."""

WINDOW_SECONDS = 5.0
TINY = Shape(layers=1, width=32, inner=48, heads=2, kv_heads=1, head_dim=16, vocabulary=50)


@dataclass(frozen=True)
class Session:
    """Where the script runs: the GPU, or with ``dry`` a CPU at tiny sizes."""

    place: Place
    dry: bool
    counter: EnergyCounter

    @property
    def shape(self) -> Shape:
        return TINY if self.dry else Shape()

    @property
    def context(self) -> int:
        return 20 if self.dry else 1024

    @property
    def burst(self) -> int:
        """Runs between two looks at the clock."""
        return 1 if self.dry else 20

    @property
    def window(self) -> float:
        return 0.0 if self.dry else WINDOW_SECONDS


class EnergyCounter:
    """Joules since the driver was loaded, by NVML; None where there is no such counter."""

    driver = "unknown"

    def __init__(self, device: torch.device) -> None:
        self._read: Callable[[], float] | None = None
        if device.type == "cpu" or torch.version.hip:
            return
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        self.driver = str(pynvml.nvmlSystemGetDriverVersion())
        self._read = lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3

    def joules(self) -> float | None:
        return self._read() if self._read else None


def open_session(dry: bool) -> Session | None:
    """None without a GPU, unless ``dry``."""
    if dry:
        device = torch.device("cpu")
        arch = dataclasses.replace(INTERPRETER, fp8=torch.float8_e4m3fn)
        return Session(Place(device, arch, HostTimer(), full=False), True, EnergyCounter(device))
    if not torch.cuda.is_available():
        return None
    device = torch.device("cuda", 0)
    return Session(Place(device, arch_of(device), GpuTimer(device), full=True), False, EnergyCounter(device))


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def kernel_rows(session: Session, ceilings: Ceilings, only: Sequence[str] | None) -> list[Row]:
    """Error and speed of every named use: checked in its first format and in float32, timed in the first."""
    rows: list[Row] = []
    for case, dtype in session.place.uses(only):
        first = case.dtypes[0] == dtype or session.dry
        if not first and dtype != torch.float32:
            continue
        rows.append(check(case, dtype, session.place))
        said = f"{case.name} {rows[-1].dtype}: error {rows[-1].error:.1e}"
        if first:
            rows.append(measure(case, dtype, session.place, ceilings))
            said += f", {rows[-1].share:.0%} of {rows[-1].bound}"
            if case.name == "paged_prefill":
                rows.append(beside_flash(session, rows[-1].seconds or float("inf")))
                said += f", {rows[-1].share:.2f} x torch's flash attention"
        say(said)
    return rows


def beside_flash(session: Session, ours: float) -> Row:
    """Prefill of 8192 tokens through torch's flash attention, whose keys need not be gathered from pages."""
    tokens, (heads, kv_heads) = (16, (2, 1)) if session.dry else (8192, (32, 8))
    kind = torch.float32 if session.dry else torch.bfloat16
    device = session.place.device
    query = torch.randn(1, heads, tokens, 128, device=device, dtype=kind)
    keys, values = (torch.randn(1, kv_heads, tokens, 128, device=device, dtype=kind) for _ in range(2))
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
    energy = "no energy counter" if joules is None else f"{joules / (runs * batch):.4f} J/token"
    goal = None if session.dry else 1 / STEP_GOAL
    return Row(
        f"decode step, batch {batch}", str(kind).removeprefix("torch."), seconds=seconds, bound="memory",
        share=1 / ratio, goal=goal, ok=goal is None or ratio <= STEP_GOAL, note=energy,
    )  # fmt: skip


def windowed(replay: Callable[[], Any], session: Session) -> tuple[float, float | None, int]:
    """Seconds of a run, joules of the whole window (None: no counter) and how many runs it held."""
    wait(session)
    started, before, runs = time.monotonic(), session.counter.joules(), 0
    while runs == 0 or time.monotonic() - started < session.window:
        for _ in range(session.burst):
            replay()
        wait(session)
        runs += session.burst
    seconds, after = (time.monotonic() - started) / runs, session.counter.joules()
    return seconds, None if before is None or after is None else after - before, runs


def wait(session: Session) -> None:
    if session.place.device.type == "cuda":
        torch.cuda.synchronize(session.place.device)


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


def release(session: Session) -> None:
    """Give a step's weights back before the next one's are made."""
    gc.collect()
    if session.place.device.type == "cuda":
        torch.cuda.empty_cache()


def facts_of(session: Session) -> dict[str, str]:
    device = session.place.device
    return {
        "device": "CPU, interpreted: figures mean nothing" if session.dry else torch.cuda.get_device_name(device),
        "architecture": session.place.arch.name, "driver": session.counter.driver, "torch": torch.__version__,
        "triton": triton.__version__, "command": " ".join(["python", "tests/bench/kernels.py", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }  # fmt: skip


def write_report(out: Path, facts: dict[str, str], ceilings: Ceilings, rows: Sequence[Row], dry: bool) -> Path:
    """JSON for machines and Markdown for people; gives the latter's path."""
    out.mkdir(parents=True, exist_ok=True)
    device = "dry" if dry else facts["device"].replace(" ", "-").replace("/", "-").lower()
    stem = out / f"kernels-{device}-{facts['date'][:10]}"
    document = {**facts, "limits": dataclasses.asdict(ceilings), "results": [dataclasses.asdict(row) for row in rows]}
    stem.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    lines = [f"# Kernels on {facts['device']}", "", *(f"- {key}: {value}" for key, value in facts.items())]
    lines.append(f"- copy (read plus written): {ceilings.copy / 1e12:.2f} TB/s")
    lines.append(f"- bf16 product: {ceilings.product / 1e12:.0f} TFLOP/s")
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


def run_all(session: Session, options: argparse.Namespace) -> int:
    facts = facts_of(session)
    ceilings = measure_ceilings(session.place)
    product = f"bf16 product {ceilings.product / 1e12:.0f} TFLOP/s"
    say(f"{facts['device']}: copy {ceilings.copy / 1e12:.2f} TB/s, {product}")
    rows = kernel_rows(session, ceilings, options.only)
    for batch in (1, 64) if options.step else ():
        rows.append(step_row(session, ceilings, 2 if session.dry and batch > 1 else batch))
        say(f"{rows[-1].name}: {(rows[-1].seconds or 0) * 1e3:.2f} ms, {rows[-1].share:.0%} of memory, {rows[-1].note}")
        release(session)
    say(f"written: {write_report(options.out, facts, ceilings, rows, session.dry)}")
    missed = [row for row in rows if not row.ok]
    for row in missed:
        say(f"missed: {row}")
    return 1 if missed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", help="names of uses; all by default")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "measurements", help="folder of the report")
    parser.add_argument("--no-step", dest="step", action="store_false", help="leave the whole decode step out")
    parser.add_argument("--dry", action="store_true", help="walk through the code on a CPU; measures nothing")
    options = parser.parse_args(arguments)
    session = open_session(options.dry)
    if session is None:
        say("no GPU found: nothing was measured and nothing written")
        return 2
    return run_all(session, options)


if __name__ == "__main__":
    sys.exit(main())
