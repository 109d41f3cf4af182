"""A benchmark on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tuner.replay.compare import Difference
from tuner.replay.result import BenchResult
from tuner.replay.rows import (
    LATENCY_HEAD,
    agentx_words,
    client_words,
    difference_rows,
    energy_words,
    figure_rows,
    latency_rows,
    pool_words,
    source_words,
)


def print_bench(console: Console, result: BenchResult, differences: list[Difference]) -> None:
    """Everything a person wants of a run, the doubts first."""
    subject = result.subject
    console.print(f"[bold]{subject.model}[/], {subject.workload}, {subject.mode}")
    if not result.valid:
        console.print("[bold red]not valid:[/]")
        for reason in result.reasons:
            console.print(f"  {reason}", markup=False)
    console.print(_table(("", "", ""), figure_rows(result), left=(0, 2)))
    console.print(_table(LATENCY_HEAD, latency_rows(result)))
    for verdict in result.run.verdicts:
        console.print(f"{verdict.slo}: {verdict.state}", markup=False)
    console.print(energy_words(result), markup=False)
    words = (pool_words(result), agentx_words(result), source_words(result), client_words(result))
    for line in (*words, *result.notes, *_counts(result)):
        if line is not None:
            console.print(line, markup=False)
    if differences:
        head = ("", "before", "after", "change", "95 % interval", "")
        console.print(_table(head, difference_rows(differences), left=(0, 5)))


def _counts(result: BenchResult) -> list[str]:
    lines = []
    if result.oddities:
        lines.append("seen in the streams: " + ", ".join(f"{name} {n}" for name, n in result.oddities.items()))
    if result.errors:
        lines.append("errors: " + ", ".join(f"{name} {n}" for name, n in result.errors.items()))
    return lines


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_header=any(head), padding=(0, 1, 0, 0))
    for index, name in enumerate(head):
        table.add_column(name, justify="left" if index in left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
