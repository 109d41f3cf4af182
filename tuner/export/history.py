"""The history of a study as PNG: what each trial was worth, the best so far, and what luck would have found."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..references import Reference
from ..summary import Row, StudySummary, row_value
from .picture import BAD, GOOD, INK, MUTED, objective_label

_LINES = {"random": (0, (1, 2)), "sobol": (0, (5, 3))}


def history_png(summary: StudySummary, references: Sequence[Reference] = ()) -> bytes:
    """A 1600x960 PNG of the search's own trials in their order; what failed stands at the foot."""
    figure = Figure(figsize=(10, 6), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    searched = [row for row in summary.rows if not row.origin.repeats]
    _points(axes, searched, summary.objective)
    best = best_so_far(searched, summary.objective)
    known = [(place, value) for place, value in enumerate(best) if value is not None]
    if known:
        xs, ys = [x for x, _ in known], [y for _, y in known]
        axes.step(xs, ys, where="post", color=GOOD, linewidth=1.6, label="best so far")
    for one in references:
        dashes = _LINES.get(one.name, (0, (1, 1)))
        label = f"{one.name} search, expected by a model of the trials"
        axes.plot(range(len(one.curve)), one.curve, color=MUTED, linewidth=1.2, linestyle=dashes, label=label)
    axes.set_title(f"{summary.study.spec.name}: the search", loc="left", color=INK)
    axes.set_xlabel("trial, in the order of the search (0 is the baseline)")
    axes.set_ylabel(objective_label(summary))
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", framealpha=0.9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def best_so_far(rows: Sequence[Row], objective: str) -> list[float | None]:
    """After each trial, the best value of what keeps every SLO; None before the first."""
    best: list[float | None] = []
    for row in rows:
        value = row_value(row, objective) if row.stands else None
        last = best[-1] if best else None
        best.append(value if last is None else last if value is None else max(last, value))
    return best


def _points(axes: Axes, rows: Sequence[Row], objective: str) -> None:
    found = [(place, row_value(row, objective), row) for place, row in enumerate(rows)]
    groups = (
        ("keeps the SLOs", GOOD, "o", [(x, y) for x, y, row in found if y is not None and row.stands]),
        ("misses an SLO", BAD, "x", [(x, y) for x, y, row in found if y is not None and not row.stands]),
        ("failed", BAD, "|", [(x, 0.0) for x, y, _ in found if y is None]),
    )
    for label, color, marker, points in groups:
        if points:
            xs, ys = [x for x, _ in points], [y for _, y in points]
            axes.scatter(xs, ys, c=color, marker=marker, s=60, label=label, zorder=3)
