"""Where ``kernels.py`` runs: a GPU, or a CPU at tiny sizes; its energy counter, and until when.

Imported by ``kernels.py`` only, which decides before whether Triton interprets.
"""

from __future__ import annotations

import dataclasses
import datetime
import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import pynvml
import torch
import triton

from kernels.cases.decode_step import Shape
from kernels.cases.measuring import GpuTimer, HostTimer, Place
from kernels.platform import INTERPRETER, arch_of

WINDOW_SECONDS = 5.0
"""In which a captured step is repeated: the energy counter is slow."""

TINY = Shape(layers=1, width=32, inner=48, heads=2, kv_heads=1, head_dim=16, vocabulary=50)


@dataclass(frozen=True)
class Session:
    """Where the script runs: the GPU, or with ``dry`` a CPU at tiny sizes. It ends by ``deadline`` of the monotonic
    clock."""

    place: Place
    dry: bool
    counter: EnergyCounter
    deadline: float = float("inf")

    def has_time(self, seconds: float) -> bool:
        return time.monotonic() + seconds < self.deadline

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


def wait(session: Session) -> None:
    if session.place.device.type == "cuda":
        torch.cuda.synchronize(session.place.device)


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
