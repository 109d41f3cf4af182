"""A study on a terminal: the result table, the Pareto plot, the list of settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotext
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from energyopt.core.units import format_figure, format_si
from tuner.export.history import best_so_far
from tuner.references import Reference
from tuner.summary import Row, StudySummary, row_value

DASH = "—"
SHORT = {"max_num_seqs": "seqs", "max_num_batched_tokens": "batch", "prefix_caching": "cache", "block_tokens": "block"}


def result_table(summary: StudySummary) -> Table:
    """Baseline, best and Pareto set; the source of the joules is a column of its own."""
    title = "Result" + (" (joules are estimated, not measured)" if summary.estimated else "")
    table = _table(title)
    table.add_column("", no_wrap=True)
    for name in ("tokens/J", "J/request", "TTFT p90", "ITL p99", "tok/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("joules", overflow="fold")
    named = [("baseline", summary.baseline), (_best_name(summary), summary.best)]
    rows = [(name, row) for name, row in named if row is not None]
    rows += [(f"Pareto: trial {row.trial}", row) for row in summary.front]
    for name, row in rows:
        table.add_row(name, *_cells(row), style=None if row.kept else "red")
    return table


def trials_table(summary: StudySummary) -> Table:
    """Every trial with its settings and outcome, verification runs included; ``failures`` says why some have none."""
    table = _table("Trials")
    table.add_column("trial", justify="right", no_wrap=True)
    table.add_column("origin")
    table.add_column("settings", overflow="fold")
    table.add_column("outcome")
    for name in ("tokens/J", "TTFT p90", "ITL p99", "tok/s"):
        table.add_column(name, justify="right")
    usual = summary.baseline.params if summary.baseline else {}
    for row in (*summary.rows, *summary.verification):
        figures = (format_figure(row.tokens_per_joule), format_si(row.ttft_p90, "s"), format_si(row.itl_p99, "s"))
        origin = row.origin.replace("verify_", "verify ")
        table.add_row(
            str(row.trial), origin, settings(row.params, usual), row.word, *figures, format_figure(row.output_rate)
        )
    return table


def plot_pareto(console: Console, summary: StudySummary) -> None:
    """A scatter of all trials that have figures; nothing is drawn without any.

    The key stands below: plotext would draw it over the upper left corner, where the best trials are.
    plotext keeps one figure for the process; it is cleared before use and nobody else draws on it.
    """
    points = [(row, row_value(row, summary.objective), row.tpot_p90) for row in summary.rows]
    drawable = [(row, x * 1e3, y) for row, y, x in points if x is not None and y is not None and x != float("inf")]
    if not drawable:
        return
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(min(console.width - 1, 90), 18)
    what = "tokens/J" if summary.objective == "tokens_per_joule" else "tok/s"
    plotext.title(f"{what} (up is better) over TPOT p90 in ms (left is better)")
    groups = (
        ("misses an SLO", "x", [p for p in drawable if not p[0].kept]),
        ("keeps the SLOs", "o", [p for p in drawable if p[0].kept and not p[0].on_front]),
        ("Pareto set", "#", [p for p in drawable if p[0].on_front]),
        ("baseline", "B", [p for p in drawable if summary.baseline and p[0].trial == summary.baseline.trial]),
        ("best", "*", [p for p in drawable if summary.best and p[0].trial == summary.best.trial]),
    )
    drawn = [(label, marker, group) for label, marker, group in groups if group]
    for _, marker, group in drawn:
        plotext.scatter([x for _, x, _ in group], [y for _, _, y in group], marker=marker)
    console.print(plotext.uncolorize(plotext.build()), markup=False, highlight=False)
    console.print("   ".join(f"{marker} {label}" for label, marker, _ in drawn), markup=False, highlight=False)


def plot_history(console: Console, summary: StudySummary, references: Sequence[Reference] = ()) -> None:
    """What each trial of the search was worth in its order, the best so far, and what luck would be expected to find.

    Nothing is drawn with fewer than two trials.
    """
    rows = [row for row in summary.rows if not row.origin.repeats]
    points = [(place, row_value(row, summary.objective), row) for place, row in enumerate(rows)]
    best = [(x, y) for x, y in enumerate(best_so_far(rows, summary.objective)) if y is not None]
    known = [(x, y, row) for x, y, row in points if y is not None]
    if len(known) < 2:
        return
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(min(console.width - 1, 90), 14)
    what = "tokens/J" if summary.objective == "tokens_per_joule" else "tok/s"
    plotext.title(f"{what} over trials, in the order of the search")
    lines = [("-", "best so far", best)]
    lines += [(mark, f"{one.name} search, expected", list(enumerate(one.curve)))
              for mark, one in zip(".:", references, strict=False)]  # fmt: skip
    drawn = []
    for marker, label, line in lines:
        if line:
            plotext.plot([x for x, _ in line], [y for _, y in line], marker=marker)
            drawn.append(f"{marker} {label}")
    for marker, label, group in (
        ("x", "misses an SLO", [p for p in known if not p[2].stands]),
        ("o", "keeps the SLOs", [p for p in known if p[2].stands]),
    ):
        if group:
            plotext.scatter([x for x, _, _ in group], [y for _, y, _ in group], marker=marker)
            drawn.append(f"{marker} {label}")
    console.print(plotext.uncolorize(plotext.build()), markup=False, highlight=False)
    console.print("   ".join(drawn), markup=False, highlight=False)


def settings(params: Mapping[str, object], usual: Mapping[str, object]) -> str:
    """``seqs=16 threads=2``: what differs from the usual values, in short names; "as baseline" if nothing does."""
    words = []
    for path, value in params.items():
        name = path.rsplit(".", 1)[-1]
        if path not in usual or usual[path] != value:
            words.append(f"{SHORT.get(name, name)}={_word(value)}")
    return " ".join(words) or "as baseline"


def failures(summary: StudySummary) -> list[str]:
    """A line for each trial that failed, with its reason."""
    return [f"trial {row.trial}: {row.error}" for row in (*summary.rows, *summary.verification) if row.error]


def _word(value: object) -> str:
    words: dict[object, str] = {True: "on", False: "off", None: "default"}
    return words[value] if isinstance(value, bool) or value is None else str(value)


def _table(title: str) -> Table:
    """Narrow enough for nine columns of figures on a terminal of 80."""
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.title_justify, table.header_style = "left", "bold"
    return table


def joules_from(row: Row) -> str:
    """Source and error of a row's joules: ``"estimated ±50%"``."""
    if row.energy_source is None:
        return "not measured"
    return row.energy_source if row.energy_error is None else f"{row.energy_source} ±{row.energy_error * 100:.2g}%"


def _best_name(summary: StudySummary) -> str:
    if summary.best is None:
        return "best"
    if summary.baseline and summary.best.trial == summary.baseline.trial:
        return "best = baseline"
    return f"best: trial {summary.best.trial}"


def _cells(row: Row) -> tuple[str, ...]:
    times = (format_si(row.ttft_p90, "s"), format_si(row.itl_p99, "s"))
    energy = (format_figure(row.tokens_per_joule), format_si(row.joules_per_request, "J"))
    return (*energy, *times, format_figure(row.output_rate), joules_from(row))
