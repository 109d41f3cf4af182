"""Error and speed of the named uses on one device, against what that device does in the same minute.

Speed is told as a share of a ceiling: bytes against a device-to-device copy, products against a bf16 matrix product.
On a CPU, where kernels are interpreted, only the error means anything, and only that is told.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from ..platform import Arch
from ..platform import name_of as name_of
from . import attention, dense
from .work import Case, Maker, Work, widened

LIMITS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""The relative error, ``||out - twin|| / ||twin||``, that each number format allows."""

GOALS: dict[str, tuple[Literal["memory", "matrix"], float]] = {
    "paged_decode": ("memory", 0.85),
    "mla_decode": ("memory", 0.70),
    "quant_vector_int4": ("memory", 0.75),
    "add_rms_norm": ("memory", 0.85),
    "rope_into_pages": ("memory", 0.85),
    "swiglu": ("memory", 0.85),
    "paged_prefill": ("matrix", 0.55),
}
"""Least shares of the copy's bandwidth or of the product's rate, in bf16 at full size."""

FLUSH_BYTES = 1 << 30
"""Written between runs: several times the largest second-level cache, and so much that the device is busy with it until
Python has queued the run behind it; a small kernel would else be timed with the wait for its launch."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the device was seen to do: ``copy`` bytes (read plus written) and ``product`` operations, each a second."""

    copy: float
    product: float


@dataclass(frozen=True, slots=True)
class Row:
    """One result; None where it does not apply. ``share`` is of the ceiling named by ``bound``."""

    name: str
    dtype: str
    error: float | None = None
    seconds: float | None = None
    bound: str | None = None
    share: float | None = None
    goal: float | None = None
    ok: bool = True
    note: str = ""


class Timer(Protocol):
    """Tells how long one run takes."""

    def seconds(self, run: Callable[[], Any]) -> float: ...


class GpuTimer:
    """The median of repeated runs by device events, each after the second-level cache was overwritten."""

    def __init__(self, device: torch.device, budget: float = 0.5) -> None:
        """Repeats for ``budget`` seconds, and at least five times."""
        self._device, self._budget = device, budget
        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=device)

    def seconds(self, run: Callable[[], Any]) -> float:
        for _ in range(3):
            run()
        torch.cuda.synchronize(self._device)
        taken: list[float] = []
        end = time.monotonic() + self._budget
        while time.monotonic() < end or len(taken) < 5:
            self._flush.zero_()
            before, after = torch.Event("cuda", enable_timing=True), torch.Event("cuda", enable_timing=True)
            before.record()
            run()
            after.record()
            torch.cuda.synchronize(self._device)
            taken.append(before.elapsed_time(after) / 1e3)
        return statistics.median(taken)


class HostTimer:
    """One run by the host's clock: for walking through the code where no GPU is, not for figures."""

    def seconds(self, run: Callable[[], Any]) -> float:
        start = time.perf_counter()
        run()
        return max(time.perf_counter() - start, 1e-9)


@dataclass(frozen=True, slots=True)
class Place:
    """Where uses are run. ``full`` asks for the sizes that are worth timing."""

    device: torch.device
    arch: Arch
    timer: Timer
    full: bool

    def make(self, case: Case, dtype: torch.dtype, small: bool) -> Work:
        """``case`` with fresh random inputs."""
        generator = torch.Generator(self.device).manual_seed(time.time_ns() % 2**31)
        return case.build(Maker(self.device, dtype, self.arch, generator), small)

    def uses(self, only: Sequence[str] | None = None) -> Iterator[tuple[Case, torch.dtype]]:
        """Every named use in every format that can run here. Raises ValueError for a name that does not exist."""
        known = (*attention.CASES, *dense.CASES)
        if only and (unknown := set(only) - {case.name for case in known}):
            names = ", ".join(case.name for case in known)
            raise ValueError(f"No kernel has a use named {', '.join(sorted(unknown))}; known are {names}.")
        for case in known:
            if (only and case.name not in only) or (case.needs_fp8 and self.arch.fp8 is None):
                continue
            yield from ((case, dtype) for dtype in self._formats(case))

    def _formats(self, case: Case) -> tuple[torch.dtype, ...]:
        """On a GPU float32 beside the case's own; Triton's interpreter has no bf16 arithmetic."""
        if self.device.type != "cpu":
            return tuple(dict.fromkeys((*case.dtypes, torch.float32)))
        return (torch.float32,) if case.dtypes == (torch.float32,) else (torch.float16,)


def measure_ceilings(place: Place) -> Ceilings:
    elements, side = (2**29, 8192) if place.full else (2**10, 16)
    source = torch.randn(elements, device=place.device)
    target = torch.empty_like(source)
    copy = 2 * source.numel() * source.element_size() / place.timer.seconds(lambda: target.copy_(source))
    a, b = (torch.randn(side, side, device=place.device).bfloat16() for _ in range(2))
    return Ceilings(copy, 2 * side**3 / place.timer.seconds(lambda: a @ b))


def check(case: Case, dtype: torch.dtype, place: Place) -> Row:
    """The largest relative error over the operator's outputs, at the small size."""
    work = place.make(case, dtype, small=True)
    expected = work.twin(*[widened(argument) for argument in work.arguments])
    out = work.op(*work.arguments, arch=place.arch)
    worst = max(relative_error(ours, twin) for ours, twin in zip(out, expected, strict=True) if twin.numel())
    return Row(case.name, name_of(dtype), error=worst, ok=worst < LIMITS[dtype])


def measure(case: Case, dtype: torch.dtype, place: Place, ceilings: Ceilings) -> Row:
    """Time beside the ceiling that the goal names, or else the nearer one."""
    work = place.make(case, dtype, small=not place.full)
    seconds = place.timer.seconds(lambda: work.op(*work.arguments, arch=place.arch))
    memory, matrix = work.bytes / ceilings.copy, work.flops / ceilings.product
    bound, goal = GOALS.get(case.name, ("memory" if memory >= matrix else "matrix", None))
    share = (memory if bound == "memory" else matrix) / seconds
    goal = goal if dtype == torch.bfloat16 else None
    met = goal is None or share >= goal
    return Row(case.name, name_of(dtype), seconds=seconds, bound=bound, share=share, goal=goal, ok=met)


def attempt(name: str, dtype: torch.dtype, run: Callable[[], Row]) -> Row:
    """``run()``, or a row that is not in order and says why there is none.

    Compilers and drivers refuse a launch with errors of many unrelated classes. This is the border where any of them
    is the result of one use: the others are still to be told.
    """
    try:
        return run()
    except Exception as error:  # noqa: BLE001
        said = " ".join(str(error).split())[:300]
        return Row(name, name_of(dtype), ok=False, note=f"{type(error).__name__}: {said}")


def relative_error(ours: torch.Tensor, twin: torch.Tensor) -> float:
    """Infinite where one is finite and the other is not."""
    ours, twin = ours.detach().cpu().double(), twin.double()
    if not torch.equal(torch.isfinite(ours), torch.isfinite(twin)):
        return float("inf")
    finite = torch.isfinite(twin)
    return float((ours - twin)[finite].norm() / twin[finite].norm().clamp_min(1e-30))
