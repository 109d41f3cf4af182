"""How time follows the clock: ``time = a + b / level``, learned from what is seen.

``a`` is what does not depend on the level (memory, network), ``b`` what does. Both come from weighted least squares
over (top / level, time), where older observations fade. Until different levels have been seen the two cannot be told
apart; a pull of ``a`` towards 0 then makes all of the time depend on the level, which is the careful belief: the model
never promises that a lower level costs less time than it has seen. Open measurements of decode follow this form within
0.2 to 0.7% (28 rows of an RTX PRO 6000 under caps).
"""

from __future__ import annotations

from dataclasses import dataclass

from energyopt.core.units import Seconds

FADING = 0.97
"""Weight that an observation keeps when the next one comes: about 30 count."""
PULL = 0.05
"""Weight of the belief that ``a`` is 0, in observations, per square of ``top / level``."""


@dataclass(slots=True)
class SpeedModel:
    """``top`` is the highest level; times are of equal work, or of work whose mix changes slowly."""

    top: float
    weight: float = 0.0
    sum_x: float = 0.0
    sum_xx: float = 0.0
    sum_y: float = 0.0
    sum_xy: float = 0.0

    def observe(self, level: float, time: Seconds) -> None:
        """One mean time at one level."""
        x = self.top / level
        self.weight = self.weight * FADING + 1
        self.sum_x = self.sum_x * FADING + x
        self.sum_xx = self.sum_xx * FADING + x * x
        self.sum_y = self.sum_y * FADING + time
        self.sum_xy = self.sum_xy * FADING + x * time

    @property
    def fit(self) -> tuple[Seconds, Seconds] | None:
        """``(a, b / top)``: the fixed part, and the other part at the top level. None before the first observation."""
        if self.weight == 0:
            return None
        pulled = self.weight + PULL
        determinant = pulled * self.sum_xx - self.sum_x * self.sum_x
        fixed = (self.sum_y * self.sum_xx - self.sum_x * self.sum_xy) / determinant
        moving = (pulled * self.sum_xy - self.sum_x * self.sum_y) / determinant
        if fixed < 0 or moving < 0:  # outside what can be: the nearer edge, fitted alone
            fixed, moving = (0.0, self.sum_xy / self.sum_xx) if fixed < 0 else (self.sum_y / self.weight, 0.0)
        return Seconds(fixed), Seconds(moving)

    def slowdown(self, now: float, then: float) -> float:
        """Time at ``then`` over time at ``now``; proportional to the level before anything was seen."""
        fit = self.fit
        if fit is None:
            return now / then
        fixed, moving = fit
        before = fixed + moving * self.top / now
        return (fixed + moving * self.top / then) / before if before > 0 else 1.0
