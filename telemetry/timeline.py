"""A monotone, piecewise linear account of energy over time, in whole nanojoules so that parts add up exactly."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import NamedTuple

from energyopt.core.results import Source

from .booking import Booking

NANOJOULES = 1_000_000_000
_AT = attrgetter("at")


class Point(NamedTuple):
    """Energy since the beginning at ``at``; ``source`` and the growth of ``doubt`` belong to the segment before it."""

    at: float
    nanojoules: int
    source: Source | None
    doubt: float


class Timeline:
    """Points in order of time. Old ones are forgotten after ``retention`` seconds; values stay where they were.

    ``by_source`` holds all nanojoules since the beginning by what they rest on.
    """

    def __init__(self, retention: float) -> None:
        self._retention = retention
        self._oldest = 1.1 * retention
        self._points: list[Point] = []
        self.by_source: dict[Source, int] = {}

    def __len__(self) -> int:
        return len(self._points)

    @property
    def span(self) -> tuple[float, float] | None:
        """First and last time known; None while empty."""
        return (self._points[0].at, self._points[-1].at) if self._points else None

    @property
    def total(self) -> int:
        """Nanojoules since the beginning, forgotten times included."""
        return self._points[-1].nanojoules if self._points else 0

    def extend(self, booking: Booking) -> None:
        """Append a segment that ends at ``booking.until``; one that ends no later than the last point is merged."""
        until, joules, source, doubt = booking
        points = self._points
        if not points:
            points.append(Point(until, 0, source, 0.0))
            return
        last_at, nanojoules, last_source, last_doubt = points[-1]
        grown = max(0, round(joules * NANOJOULES))
        if source is not None:
            self.by_source[source] = self.by_source.get(source, 0) + grown
        if until <= last_at:
            points[-1] = Point(last_at, nanojoules + grown, last_source, last_doubt + doubt)
            return
        points.append(Point(until, nanojoules + grown, source, last_doubt + doubt))
        if points[0].at < until - self._oldest:
            self._forget(until - self._retention)

    def at(self, time: float) -> int:
        """Nanojoules at a time inside the span, which the caller has checked."""
        before, after = self._around(time)
        if after.at == before.at:
            return before.nanojoules
        grown = after.nanojoules - before.nanojoules
        share = (time - before.at) / (after.at - before.at)
        return before.nanojoules + min(grown, max(0, round(grown * share)))

    def doubt_at(self, time: float) -> float:
        before, after = self._around(time)
        if after.at == before.at:
            return before.doubt
        return before.doubt + (after.doubt - before.doubt) * (time - before.at) / (after.at - before.at)

    def slope(self, time: float) -> tuple[float, Source | None]:
        """Watts and source of the segment that ``time`` lies in (of the one before it, at a point)."""
        before, after = self._around(time)
        if after.at == before.at:
            return 0.0, after.source
        return (after.nanojoules - before.nanojoules) / NANOJOULES / (after.at - before.at), after.source

    def sources(self, start: float, end: float) -> set[Source | None]:
        """Sources of all segments that overlap the window by more than a point."""
        first = bisect_right(self._points, start, key=_AT)
        last = bisect_left(self._points, end, key=_AT)
        return {point.source for point in self._points[max(1, first) : last + 1]}

    def _around(self, time: float) -> tuple[Point, Point]:
        index = min(max(1, bisect_left(self._points, time, key=_AT)), len(self._points) - 1)
        return self._points[max(0, index - 1)], self._points[index]

    def _forget(self, before: float) -> None:
        """Drop points in bulk, so that the cost per sample stays constant; keep one at or before the limit."""
        keep = bisect_right(self._points, before, key=_AT) - 1
        del self._points[: max(0, keep)]
