"""``kernels check``: the error of every kernel on this machine and, on a GPU, its share of what the device can do."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

from energyopt.core.errors import ConfigError
from engine.models import choose_device
from engine.operators import describe
from kernels.platform import INTERPRETER, UnsupportedDeviceError, arch_of

INTERPRETED = "interpreted on the CPU, small sizes: shows that kernels are right, not how fast they are"


@dataclass(frozen=True, slots=True)
class CheckProgress:
    """``done`` of ``total`` uses, and which one is running."""

    done: int
    total: int
    name: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """``rows`` as ``kernels.cases.measuring.Row`` says; ``how`` tells what kind of run it was."""

    device: str
    how: str
    rows: tuple[Any, ...]
    ceilings: Any | None

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows)

    def document(self) -> dict[str, object]:
        return {
            "device": self.device,
            "how": self.how,
            "ok": self.ok,
            "ceilings": None if self.ceilings is None else asdict(self.ceilings),
            "rows": [asdict(row) for row in self.rows],
        }


def check_kernels(
    only: Sequence[str] | None,
    on_progress: Callable[[CheckProgress], None],
    environ: MutableMapping[str, str] = os.environ,
) -> CheckReport:
    """Check every named use, or those in ``only``; one that fails is a row that is not ok, and the others follow.

    Raises ConfigError for an unknown name, a GPU that is too old, or without Triton.
    """
    device = choose_device("auto")
    measuring = _measuring(device, environ)
    place = _place(device, measuring)
    try:
        uses = list(place.uses(only))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    ceilings = measuring.measure_ceilings(place) if place.full else None
    rows = []
    for done, (case, dtype) in enumerate(uses):
        on_progress(CheckProgress(done, len(uses), f"{case.name} {measuring.name_of(dtype)}"))
        rows.append(measuring.attempt(case.name, dtype, partial(measuring.check, case, dtype, place)))
        if ceilings is not None and dtype in case.dtypes and rows[-1].error is not None:
            rows.append(measuring.attempt(case.name, dtype, partial(measuring.measure, case, dtype, place, ceilings)))
    how = "measured on the device" if place.full else INTERPRETED
    return CheckReport(describe(device).device, how, tuple(rows), ceilings)


def _place(device: torch.device, measuring: Any) -> Any:
    """The interpreter stands in for a GPU that has eight-bit floats, so that their uses are checked as well."""
    if device.type != "cpu":
        try:
            return measuring.Place(device, arch_of(device), measuring.GpuTimer(device), full=True)
        except UnsupportedDeviceError as error:
            raise ConfigError(str(error)) from error
    arch = replace(INTERPRETER, fp8=torch.float8_e4m3fn)
    return measuring.Place(device, arch, measuring.HostTimer(), full=False)


def _measuring(device: torch.device, environ: MutableMapping[str, str]) -> Any:
    """The module that measures. Triton decides at its import whether it interprets, so a CPU must ask before that."""
    if device.type == "cpu":
        if "triton" in sys.modules and not sys.modules["triton"].knobs.runtime.interpret:
            raise ConfigError("Kernels run on a CPU only with TRITON_INTERPRET=1 in the environment: set it.")
        environ["TRITON_INTERPRET"] = "1"
    environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    try:
        return importlib.import_module("kernels.cases.measuring")
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise ConfigError("Kernels need triton, which is not installed: pip install energyopt[gpu]") from error
