"""The set of points that no other point beats in every objective."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def dominates(left: Sequence[float], right: Sequence[float]) -> bool:
    """True if ``left`` is at least as large everywhere and larger somewhere (all objectives are maximised)."""
    return all(a >= b for a, b in zip(left, right, strict=True)) and any(
        a > b for a, b in zip(left, right, strict=True)
    )


def pareto_front(items: Sequence[T], objectives: Callable[[T], Sequence[float | None]]) -> list[T]:
    """The items that no other dominates, in their given order; every objective is maximised.

    An item with an unknown (None) or non-finite objective is left out: NaN is never dominated and would float to the
    front. Of items with equal objectives the first stays.
    """
    known: list[tuple[T, tuple[float, ...]]] = []
    for item in items:
        values = tuple(objectives(item))
        if all(value is not None and math.isfinite(value) for value in values):
            known.append((item, tuple(float(value) for value in values if value is not None)))
    front = []
    for index, (item, values) in enumerate(known):
        beaten = any(dominates(other, values) for _, other in known)
        repeated = any(other == values for _, other in known[:index])
        if not beaten and not repeated:
            front.append(item)
    return front
