"""What works on this machine and why not: each check asks one part and turns its answer into a sentence.

Nothing is changed: no limit is set, and the database is opened the way a study would open it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

import energyopt
from energyopt.core.clock import MonotonicClock
from energyopt.core.errors import EnergyoptError
from energyopt.store.database import default_url, open_store
from engine.models import ALIASES, choose_device, choose_dtype, resolve_model
from engine.parallel.semaphores import STRIDE, Semaphores
from kernels.cpu.compiler import NoCompilerError
from kernels.cpu.library import best_library
from kernels.cpu.program import NativeError
from kernels.cpu.speed import measure, numa_nodes
from kernels.dispatch import available, select_ops

from .machine import describe_machine, library_version
from .meters import find_meter, visible_identities
from .power import cap_capability

ROOMS = ("energyopt", "telemetry", "tuner", "engine", "kernels", "api", "dashboards")
State = Literal["ok", "limited", "broken"]


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. ``limited``: works, but something useful is missing; ``broken``: the product will not work."""

    name: str
    state: State
    detail: str
    fix: str | None = None


def diagnose(db: str | None) -> list[Check]:
    """All checks, in the order in which a person would want to mend them. Never raises for what it finds."""
    checks: dict[str, Callable[[], Check]] = {
        "packages": _packages,
        "machine": _machine,
        "engine": _engine,
        "kernels": _kernels,
        "native kernels": _native,
        "ranks": _ranks,
        "demo model": _demo_model,
        "GPUs": _gpus,
        "energy meter": _meter,
        "power caps": _caps,
        "database": lambda: _database(db),
    }
    return [_guarded(name, check) for name, check in checks.items()]


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    """A part that fails is a finding, not the end of the diagnosis."""
    try:
        return check()
    except EnergyoptError as error:
        return Check(name, "broken", error.message)


def _packages() -> Check:
    """Another distribution's package of the same name in front of ours would be run instead of ours."""
    home = Path(energyopt.__file__).resolve().parent.parent
    foreign = []
    for room in ROOMS:
        spec = importlib.util.find_spec(room)
        origin = Path(spec.origin).resolve() if spec is not None and spec.origin is not None else None
        if origin is None or origin.parent != home / room:
            foreign.append(f"{room} from {origin or 'nowhere'}")
    if foreign:
        fix = "install energyopt in an environment of its own and run it outside folders that hold such names"
        return Check("packages", "broken", f"not from this installation: {', '.join(foreign)}", fix)
    return Check(
        "packages", "ok", f"all {len(ROOMS)} from energyopt {energyopt.__version__}, Python {sys.version.split()[0]}"
    )


def _machine() -> Check:
    facts = describe_machine()
    words = [facts.get("cpu", "unknown CPU"), f"{facts['cores']} usable cores", facts.get("memory", "memory unknown")]
    return Check("machine", "ok", ", ".join(words))


def _engine() -> Check:
    device = choose_device("auto")
    dtype = str(choose_dtype("auto", device)).removeprefix("torch.")
    return Check("engine", "ok", f"torch {torch.__version__} on {device.type}, number format {dtype}")


def _kernels() -> Check:
    device = choose_device("auto")
    problems = "; ".join(f"{name}: {problem}" for name, problem in available(device).items() if problem)
    chosen = f"auto takes {select_ops('auto', device).name}"
    return Check("kernels", "ok", chosen + (f"; not here: {problems}" if problems else ""))


def _native() -> Check:
    """Which variant the CPU runs, what it reaches with one thread and with all, and what an engine makes of that."""
    try:
        library = best_library()
    except NoCompilerError as error:
        return Check("native kernels", "limited", f"{error} Until then torch computes, several times more slowly.")
    cores, nodes = len(os.sched_getaffinity(0)), numa_nodes()
    try:
        speeds = [measure(library, threads) for threads in sorted({1, cores})]
    except (NativeError, MemoryError) as error:
        return Check(
            "native kernels", "limited", f"what they reach cannot be measured: {error}", "serve with fewer: --threads 1"
        )
    best = max(speeds, key=lambda speed: speed.read).threads
    number = "one NUMA node" if nodes == 1 else f"{nodes} NUMA nodes: bind the engine to one with numactl"
    details = [
        library.native_variant().decode(),
        *map(str, speeds),
        number,
        "weights of 4 or 8 bits, keys and values in bfloat16",
        f"{best} of {cores} threads {'reads' if best == 1 else 'read'} fastest now; without --threads an engine tries "
        "again as it runs",
    ]
    return Check("native kernels", "ok", "; ".join(details))


def _ranks() -> Check:
    """Whether several CPU ranks of this host can exchange through memory; raises EngineError where they cannot."""
    Semaphores(memoryview(bytearray(STRIDE)), 1, lambda: None)
    gpus = torch.cuda.device_count()
    over = f"NCCL over {gpus} GPUs" if gpus > 1 else "shared memory"
    return Check("ranks", "ok", f"a layout such as --tensor-parallel-size 2 runs one process a rank, over {over}")


def _demo_model() -> Check:
    name = "smollm2-135m"
    try:
        path = resolve_model(name)
    except EnergyoptError as error:
        return Check("demo model", "limited", error.message, ALIASES[name].install)
    return Check("demo model", "ok", f"{name} is {path.name} ({path.stat().st_size / 1e6:.0f} MB)")


def _gpus() -> Check:
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_properties(index).name for index in range(torch.cuda.device_count())]
        return Check("GPUs", "ok", ", ".join(names))
    driver = library_version("nvidia-ml-py")
    return Check("GPUs", "limited", f"torch finds no GPU (nvidia-ml-py {driver}); the engine runs on the CPU")


def _meter() -> Check:
    found = find_meter("auto", visible_identities("auto"), MonotonicClock())
    for source in found.sources:
        source.close()
    weak = all(source.source == "estimated" for source in found.sources)
    detail = " ".join(found.reasons) or "a meter answers"
    if not found.sources:
        return Check("energy meter", "limited", detail, "studies compare by tokens per second here")
    return Check("energy meter", "limited" if weak else "ok", detail)


def _caps() -> Check:
    able, reason = cap_capability(visible_identities("auto"))
    return Check("power caps", "ok" if able else "limited", reason)


def _database(db: str | None) -> Check:
    url = default_url(os.environ) if db is None else db
    store = open_store(url)
    return Check("database", "ok", f"{url}, {len(store.studies(limit=1000))} studies")
