"""What a run of the bench found: kept as JSON with machine and versions, beside what was committed last."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

COMPARED = ("torch", "transformers", "optuna", "sqlalchemy", "numpy")


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure; ``goal`` is what was asked ("at least 2", "under 15"), ``value`` what was seen."""

    name: str
    value: float
    unit: str
    goal: str
    load: float
    """The machine's load average while it was taken: a figure of a busy machine is a hint."""


class Report(Protocol):
    """How a bench tells a figure: name, value, unit, and what was asked."""

    def __call__(self, name: str, value: float, unit: str = "", goal: str = "") -> None: ...


def machine() -> dict[str, str]:
    """What a reader must know to compare: processor, cores, versions, day."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    versions = " ".join(f"{name} {version(name)}" for name in COMPARED)
    return {
        "processor": model,
        "cores": str(len(os.sched_getaffinity(0))),
        "python": platform.python_version(),
        "versions": versions,
        "day": datetime.now(UTC).date().isoformat(),
    }


def taken(name: str, value: float, unit: str, goal: str) -> Figure:
    return Figure(name, float(f"{value:.4g}"), unit, goal, round(os.getloadavg()[0], 1))


def write(path: Path, figures: Iterable[Figure], facts: Mapping[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": dict(facts), "figures": [asdict(figure) for figure in figures]}
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read(path: Path) -> dict[str, Figure]:
    """Figures of a file that ``write`` made, by name; none where there is no file."""
    if not path.exists():
        return {}
    found = (Figure(**one) for one in json.loads(path.read_text(encoding="utf-8"))["figures"])
    return {figure.name: figure for figure in found}


def facts_of(path: Path) -> dict[str, str]:
    """The machine of a file that ``write`` made; nothing where there is no file."""
    return dict(json.loads(path.read_text(encoding="utf-8"))["machine"]) if path.exists() else {}


def table(figures: Iterable[Figure], before: Mapping[str, Figure]) -> list[str]:
    """Lines for people: name, value, goal, and what it was when figures were committed last."""
    rows = [("figure", "now", "asked", "committed", "load")]
    for figure in figures:
        last = before.get(figure.name)
        was = f"{last.value:g} {last.unit}".strip() if last else "-"
        rows.append(
            (figure.name, f"{figure.value:g} {figure.unit}".strip(), figure.goal or "-", was, f"{figure.load:g}")
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
