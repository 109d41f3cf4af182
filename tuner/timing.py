"""How long trials take, and whether one more fits into the budget.

Durations come from the events of the study, so a resumed study knows what it has spent already.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from energyopt.core.clock import Clock
from energyopt.core.leases import FINISHED
from energyopt.core.slo import quantile
from energyopt.core.study import Budget, Event
from energyopt.core.units import Joules, Seconds


class Timing:
    """The study's stopwatch and energy meter. Every run counts against the budget; time between processes does not.

    Of trials that ran side by side the time counts once, their joules all. The events of finished trials carry both.

    ``reserve`` is work after the search beside the verification pairs, in runs.
    """

    def __init__(self, budget: Budget, clock: Clock, events: Iterable[Event], *, reserve: int = 0) -> None:
        self._limit, self._clock = budget.seconds, clock
        self._energy, self._spent = budget.joules, list[float]()
        self._verification = 2 * budget.verify_pairs + reserve
        self._durations: list[float] = []
        self._earlier = 0.0
        self._start = clock.now()
        until = -math.inf
        for event in events:
            seconds = event.data.get("seconds")
            if event.kind == FINISHED and isinstance(seconds, (int, float)):
                joules = event.data.get("joules")
                known = Joules(joules) if isinstance(joules, (int, float)) else None
                self.note(Seconds(seconds), ran=event.data.get("ran") is True, joules=known)
                end = event.at.timestamp()
                self._earlier += min(seconds, max(0.0, end - until))
                until = max(until, end)

    def note(self, duration: Seconds, *, ran: bool, joules: Joules | None = None) -> None:
        """A trial took ``duration``, its window ``joules`` where they were measured.

        One that failed says nothing about how long the next will take.
        """
        if ran:
            self._durations.append(duration)
        if joules is not None:
            self._spent.append(joules)

    def limit(self, budget: Budget) -> None:
        """The budget has changed."""
        self._limit, self._energy = budget.seconds, budget.joules

    @property
    def typical(self) -> Seconds | None:
        """What a trial takes: the third quartile of those that ran, None before the first."""
        return Seconds(quantile(self._durations, 0.75)) if self._durations else None

    @property
    def left(self) -> Seconds | None:
        """Time left for everything; None without a limit."""
        if self._limit is None:
            return None
        return Seconds(self._limit - self._earlier - (self._clock.now() - self._start))

    def fits(self, runs: int) -> bool:
        """Whether ``runs`` of the usual length and the usual joules would still end within the budget."""
        left = self.left
        in_time = left is None or left >= runs * (self.typical or 0.0)
        return in_time and self._affords(runs)

    def _affords(self, runs: int) -> bool:
        if self._energy is None or not self._spent:
            return True
        return self._energy - math.fsum(self._spent) >= runs * quantile(self._spent, 0.75)

    @property
    def fits_another(self) -> bool:
        """Whether one more search trial leaves time for the verification."""
        return self.fits_beside(0)

    def fits_beside(self, under_way: int) -> bool:
        """``fits_another`` while others are measured: they take their joules, but no time of their own."""
        return self.fits(1 + self._verification) and self._affords(1 + self._verification + under_way)
