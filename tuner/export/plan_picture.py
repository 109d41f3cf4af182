"""The Pareto picture of a plan as PNG: tokens per joule against speed per user, one colour a GPU type."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from energyopt.core.pareto import pareto_front

from .picture import INK

COLORS = ("#0b7a75", "#c8553d", "#3d5a98", "#8a6d1f", "#7a3d8c", "#4a4a4a")


@dataclass(frozen=True, slots=True)
class PlanPoint:
    """One deployment of a front."""

    user_rate: float
    tokens_per_joule: float
    recommended: bool


def plan_png(fronts: Mapping[str, Sequence[PlanPoint]], *, title: str) -> bytes:
    """A 1600x960 PNG of the fronts by GPU name; the axis says that it is simulated.

    The lines join what is best in the two figures shown; the other points are on the front for their rate per GPU.
    """
    figure = Figure(figsize=(10, 6), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, (name, points) in enumerate(fronts.items()):
        color = COLORS[number % len(COLORS)]
        upper = pareto_front(points, lambda point: (point.user_rate, point.tokens_per_joule))
        edge = sorted((point.user_rate, point.tokens_per_joule) for point in upper)
        axes.step([x for x, _ in edge], [y for _, y in edge], where="pre", color=color, linewidth=1.5, label=name)
        axes.scatter(
            [point.user_rate for point in points],
            [point.tokens_per_joule for point in points],
            s=16,
            color=color,
            alpha=0.4,
        )
        for point in points:
            if point.recommended:
                at = (point.user_rate, point.tokens_per_joule)
                axes.scatter(*at, s=140, facecolors="none", edgecolors=color, linewidths=2)
                axes.annotate("recommended", at, xytext=(10, 8), textcoords="offset points", color=INK, weight="bold")
    axes.set_title(title, loc="left", color=INK)
    axes.set_xlabel("output tokens per second and user: right is faster")
    axes.set_ylabel("output tokens per joule of the whole budget (simulated)")
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if fronts:
        axes.legend(frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
