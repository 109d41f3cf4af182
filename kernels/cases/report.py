"""Results of named uses as lines of text and as a report: JSON for machines, Markdown for people."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from .measuring import Ceilings, Row


def sentence(row: Row) -> str:
    """One line for the terminal."""
    said = [f"{row.name} {row.dtype}:"]
    if row.error is not None:
        said.append(f"error {row.error:.1e}")
    if row.seconds is not None:
        said.append(f"{row.seconds * 1e6:.1f} us")
    if row.share is not None:
        said.append(f"{row.share:.2f} of {row.bound}")
    return " ".join([*said, row.note, "" if row.ok else "(missed)"]).rstrip()


def write_report(out: Path, facts: Mapping[str, str], ceilings: Ceilings, rows: Sequence[Row], dry: bool) -> Path:
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
