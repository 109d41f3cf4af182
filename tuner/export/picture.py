"""The Pareto picture of a study as PNG: the study's objective against the time per output token.

Drawn with matplotlib's object interface: no global state, no display.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..summary import Row, StudySummary, row_value

INK, MUTED, GOOD, BAD = "#1c2733", "#8a97a5", "#0b7a75", "#c8553d"


def pareto_png(summary: StudySummary) -> bytes:
    """A 1600x960 PNG. Trials without both figures are not drawn; the title says how many."""
    figure = Figure(figsize=(10, 6), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _points(axes, summary)
    _decorate(axes, summary)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def objective_label(summary: StudySummary) -> str:
    """Axis text of the objective, saying when the joules behind it were not measured."""
    if summary.objective != "tokens_per_joule":
        return "output tokens per second"
    return f"output tokens per joule{' (estimated)' if summary.estimated else ''}"


def _drawable(rows: Sequence[Row], objective: str) -> list[tuple[Row, float, float]]:
    points = []
    for row in rows:
        value = row_value(row, objective)
        if value is not None and row.tpot_p90 is not None and row.tpot_p90 != float("inf"):
            points.append((row, row.tpot_p90 * 1e3, value))
    return points


def _points(axes: Axes, summary: StudySummary) -> None:
    points = _drawable(summary.rows, summary.objective)
    groups = (
        ("misses an SLO", BAD, "x", [p for p in points if not p[0].kept]),
        ("keeps the SLOs", MUTED, "o", [p for p in points if p[0].kept and not p[0].on_front]),
        ("Pareto set", GOOD, "o", [p for p in points if p[0].on_front]),
    )
    for label, color, marker, group in groups:
        if group:
            axes.scatter([x for _, x, _ in group], [y for _, _, y in group], c=color, marker=marker, s=60, label=label)
    front = sorted((x, y) for row, x, y in points if row.on_front)
    axes.step([x for x, _ in front], [y for _, y in front], where="post", color=GOOD, linewidth=1, alpha=0.6)
    for name, row in (("baseline", summary.baseline), ("best", summary.best)):
        for candidate, x, y in points:
            if row is not None and candidate.trial == row.trial:
                offset = (10, -16) if name == "baseline" else (10, 10)
                axes.annotate(name, (x, y), xytext=offset, textcoords="offset points", color=INK, weight="bold")


def _decorate(axes: Axes, summary: StudySummary) -> None:
    missing = len(summary.rows) - len(_drawable(summary.rows, summary.objective))
    note = f", {missing} of {len(summary.rows)} trials have no figure to draw" if missing else ""
    axes.set_title(f"{summary.study.spec.name}{note}", loc="left", color=INK)
    axes.set_xlabel("time per output token, p90 (ms): left is faster")
    axes.set_ylabel(objective_label(summary))
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
