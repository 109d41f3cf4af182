"""Learns what a step costs, ``fixed + slope x rows``, from steps that differ in their rows."""

from __future__ import annotations

_DECAY = 0.99
"""Weight of a step when the next one comes: about the last hundred count."""
_SPREAD = 0.05
"""Relative spread of rows below which no line is drawn: the last one that was stays."""


class StepCost:
    """Least squares over decaying weights. Neither part is below 0, as a step can only cost more than nothing."""

    def __init__(self) -> None:
        self.line: tuple[float, float] | None = None
        """Fixed part and slope; None before steps of different rows were seen."""
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, rows: float, cost: float) -> None:
        """One step."""
        self._n = self._n * _DECAY + 1
        self._x = self._x * _DECAY + rows
        self._y = self._y * _DECAY + cost
        self._xx = self._xx * _DECAY + rows * rows
        self._xy = self._xy * _DECAY + rows * cost
        mean, average = self._x / self._n, self._y / self._n
        variance = self._xx / self._n - mean * mean
        if variance > (_SPREAD * mean) ** 2:
            slope = min(max((self._xy / self._n - mean * average) / variance, 0.0), average / mean)
            self.line = average - slope * mean, slope
