"""The first points of a search, before a model can say anything.

They alternate between two questions: what does one knob do on its own (the baseline with that knob at the end of its
range, knobs in the space's order, which is that of their expected effect), and what does the rest of the space look
like (a Latin hypercube).
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from tuner.space import SearchSpace

from .geometry import Geometry
from .history import Index


def first_points(space: SearchSpace, geometry: Geometry, count: int, seed: int) -> list[Index]:
    """Up to ``count`` distinct valid points, none of them the baseline."""
    baseline = space.index(space.baseline_params)
    valid = set(geometry.points)
    singles = [point for point in _single_changes(space, baseline) if point in valid][: (count + 1) // 2]
    spread = geometry.stratified(count - len(singles), random.Random(f"{seed}/start"), {baseline, *singles})
    chosen: list[Index] = []
    for pair in range(max(len(singles), len(spread))):
        chosen += singles[pair : pair + 1] + spread[pair : pair + 1]
    return chosen


def _single_changes(space: SearchSpace, baseline: Index) -> Iterator[Index]:
    """The baseline with one knob at its farther end, knob by knob; then at its nearer end."""
    for farther in (True, False):
        for i, knob in enumerate(space.knobs):
            last = len(knob.values) - 1
            ends = sorted((0, last), key=lambda end, at=baseline[i]: abs(end - at), reverse=farther)
            point = (*baseline[:i], ends[0], *baseline[i + 1 :])
            if point != baseline:
                yield point
