"""The front has exactly the points nothing dominates."""

import math

from hypothesis import given
from hypothesis import strategies as st

from energyopt.core.pareto import dominates, pareto_front

Point = tuple[float, float]


def itself(point: Point) -> Point:
    return point


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5))))
def test_front_is_undominated_and_covers_the_rest(points: list[Point]) -> None:
    front = pareto_front(points, itself)
    assert not any(dominates(a, b) for a in front for b in front)
    assert all(point in front or any(dominates(best, point) for best in front) for point in points)


def test_unknown_and_nan_points_are_left_out() -> None:
    points: list[tuple[float | None, float]] = [(None, 9), (math.nan, 9), (1, 1)]
    assert pareto_front(points, lambda point: point) == [(1, 1)]
