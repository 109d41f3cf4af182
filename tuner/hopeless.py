"""When a run can end early because no rest of it could save its SLO."""

from __future__ import annotations

from collections.abc import Sequence

from energyopt.core.records import RequestRecord
from energyopt.core.slo import Slo, SloMetric

from .counting import Window
from .window import judge_in

EXCESS = 2.0
"""An estimate of three times the target does not come back within a window."""
SHARE = 1 / 3
"""Part of the window that is always measured."""
LEAST = 8


def hopeless(window: Window, slos: Sequence[Slo], records: Sequence[RequestRecord]) -> str | None:
    """The SLO that the part of the window measured so far misses beyond hope, in words; None while there is hope.

    Rates are left alone: they only mean something over the whole window.
    """
    latency = [slo for slo in slos if slo.metric is not SloMetric.GOODPUT]
    for verdict in judge_in(window, latency, records):
        if verdict.samples >= LEAST and verdict.violation is not None and verdict.violation > EXCESS:
            return f"{verdict.slo} is missed by {verdict.violation:.0%} over {verdict.samples} samples"
    return None
