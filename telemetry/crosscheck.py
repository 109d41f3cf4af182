"""Counter against integrated power: two paths to the same joules, and whether the counter's rate may be believed."""

from __future__ import annotations

from collections import deque

LOWEST, HIGHEST = 1 / 2.1, 2.1
"""Bounds of a believable ratio: a factor of two, and the 5% by which a good power reading may be off.

A counter of the wrong unit is off by 9 (ROCm/amdsmi#38) or more; two honest paths differ by less than two (Part-time
Power Measurements, SC24; ml-energy/zeus#181).
"""
JUDGED = 10.0
"""Seconds of both paths on which a verdict rests: many ticks of the counter, many windows of an averaging sensor."""
MIN_POWER = 5.0
"""Watts below which offsets of the power reading, not the counter, decide the ratio."""
REMEMBERED = 600.0
"""Seconds after which old joules lose half their weight in the published ratio, so that a new fault shows."""


class CrossCheck:
    """Compares spans in which both paths are known. It books nothing; it knows no clock."""

    def __init__(self) -> None:
        self._spans: deque[tuple[float, float, float]] = deque()
        self._recent = (0.0, 0.0, 0.0)
        self._counted = self._integrated = self._seconds = 0.0
        self.distrusted = False

    @property
    def ratio(self) -> float | None:
        """Counted over integrated energy, the last minutes weighing most; None before a joule of either."""
        return self._counted / self._integrated if min(self._counted, self._integrated) > 1.0 else None

    def add(self, counted: float, integrated: float, seconds: float) -> bool:
        """Take in joules of one span by both paths. True if this span is what made the counter's rate unbelievable."""
        self._counted += counted
        self._integrated += integrated
        self._seconds += seconds
        if self._seconds > 2 * REMEMBERED:
            self._counted, self._integrated, self._seconds = self._counted / 2, self._integrated / 2, REMEMBERED
        self._push((counted, integrated, seconds))
        before, self.distrusted = self.distrusted, self._verdict()
        return self.distrusted and not before

    def _push(self, span: tuple[float, float, float]) -> None:
        self._spans.append(span)
        counted, integrated, seconds = self._recent
        counted, integrated, seconds = counted + span[0], integrated + span[1], seconds + span[2]
        while seconds - self._spans[0][2] >= JUDGED:
            gone = self._spans.popleft()
            counted, integrated, seconds = counted - gone[0], integrated - gone[1], seconds - gone[2]
        self._recent = (counted, integrated, seconds)

    def _verdict(self) -> bool:
        counted, integrated, seconds = self._recent
        if seconds < JUDGED or integrated < MIN_POWER * seconds:
            return self.distrusted
        return not LOWEST <= counted / integrated <= HIGHEST
