"""The cache curve as PNG: hit rate by tier over the size of the device pool. No global state, no display."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..simulator.cache_curve import CurvePoint

INK, COLOURS = "#1c2733", ("#0b7a75", "#d8a23a", "#8a97a5", "#5b6ee1")


def curve_png(name: str, points: Sequence[CurvePoint], tiers: Sequence[str], ideal: float, block_tokens: int) -> bytes:
    """A 1600x960 PNG; points without limit stand as the dashed line of the ideal. ``tiers`` are stacked in order."""
    figure = Figure(figsize=(10, 6), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    drawn = sorted((point for point in points if point.capacity is not None), key=lambda point: point.capacity or 0)
    sizes = [point.capacity or 0 for point in drawn]
    shares = [[100 * point.rate_of(tier) for point in drawn] for tier in tiers]
    if len(drawn) > 1:
        axes.stackplot(sizes, *shares, labels=list(tiers), colors=COLOURS[: len(tiers)], alpha=0.85)
        axes.set_xscale("log")
        axes.set_xlim(sizes[0], sizes[-1])
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
    elif drawn:
        bottom = 0.0
        for tier, colour, (share,) in zip(tiers, COLOURS, shares, strict=False):
            axes.bar([str(sizes[0])], [share], bottom=bottom, label=tier, color=colour)
            bottom += share
    axes.axhline(100 * ideal, color=INK, linestyle="--", linewidth=1, label=f"forgets nothing: {100 * ideal:.2f} %")
    axes.set_title(f"{name}: how much cache these sessions need", loc="left", color=INK)
    axes.set_xlabel(f"device pool, blocks of {block_tokens} tokens")
    axes.set_ylabel("prompt blocks found in the cache, %")
    axes.set_ylim(0, 105 * max(ideal, 0.01))
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", framealpha=0.9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
