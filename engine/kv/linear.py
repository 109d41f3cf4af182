"""Learns ``fixed + slope x amount`` from examples, the newest counting most."""

from __future__ import annotations

_DECAY = 0.9
"""Weight of an example when the next one comes: about the last ten count."""

_ENOUGH = 3
_SPREAD = 0.2
"""Relative spread of amounts below which a line through them would be a guess: then all cost is per amount."""


class LinearCost:
    """Least squares over decaying weights; neither part is ever below 0. Knows nothing before three examples."""

    def __init__(self) -> None:
        self._examples = 0
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, amount: float, cost: float) -> None:
        """One example. Amounts of 0 teach nothing."""
        if amount <= 0:
            return
        self._examples += 1
        self._n = self._n * _DECAY + 1
        self._x = self._x * _DECAY + amount
        self._y = self._y * _DECAY + cost
        self._xx = self._xx * _DECAY + amount * amount
        self._xy = self._xy * _DECAY + amount * cost

    @property
    def line(self) -> tuple[float, float] | None:
        """Fixed part and slope."""
        if self._examples < _ENOUGH:
            return None
        mean, average = self._x / self._n, self._y / self._n
        variance = self._xx / self._n - mean * mean
        if variance > (_SPREAD * mean) ** 2:
            slope = (self._xy / self._n - mean * average) / variance
            fixed = average - slope * mean
            if slope >= 0 and fixed >= 0:
                return fixed, slope
            if slope < 0:
                return average, 0.0
        return 0.0, self._y / self._x

    @property
    def slope(self) -> float | None:
        """Cost of one more of the amount."""
        line = self.line
        return None if line is None else line[1]

    def of(self, amount: float) -> float | None:
        """What ``amount`` costs at once."""
        line = self.line
        return None if line is None else line[0] + line[1] * amount
