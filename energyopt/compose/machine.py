"""What this machine is, in words that a report can carry: enough to tell two machines apart, nothing that is secret."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from energyopt import __version__
from energyopt.core.units import bytes_from_kibibytes, format_si

LIBRARIES = ("torch", "optuna", "nvidia-ml-py")


def usable_cores() -> int:
    """Cores this process may run on: affinity counts, a cgroup's quota does not."""
    return len(os.sched_getaffinity(0))


def describe_machine(proc: Path = Path("/proc")) -> dict[str, str]:
    """Facts for the study record; a fact that cannot be read is absent."""
    facts = {
        "energyopt": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": str(usable_cores()),
    }
    cpu = _field(proc / "cpuinfo", "model name")
    if cpu is not None:
        facts["cpu"] = cpu
    memory = _field(proc / "meminfo", "MemTotal")
    if memory is not None and memory.split()[0].isdigit():
        facts["memory"] = format_si(bytes_from_kibibytes(int(memory.split()[0])), "B")
    for library in LIBRARIES:
        found = library_version(library)
        if found is not None:
            facts[library] = found
    return facts


def library_version(name: str) -> str | None:
    """The installed version of a distribution; None without it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _field(path: Path, name: str) -> str | None:
    """The value of the first ``name : value`` line of a proc file."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        key, colon, value = line.partition(":")
        if colon and key.strip() == name:
            return value.strip()
    return None
