"""What sleeping saved: the energy that idling awake would have taken, less what was taken from falling asleep to awake.

Sensors lag and remember for a limited time, so a sleep is accounted for piece by piece, each as soon as it is covered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from energyopt.core.results import EnergyTotal
from energyopt.core.units import Joules, Seconds

EnergyBetween = Callable[[float, float], EnergyTotal | None]

PIECE = Seconds(60.0)
"""Longest piece of a sleep, and of the idle time before it that tells the power awake."""
_PATIENCE = 300.0
"""Seconds after which a piece that the sensors do not cover is given up: they remember for some minutes only."""


@dataclass(slots=True)
class _Awake:
    """The idle time before a sleep; ``power`` is what it took, in watts with their error, once the sensors know."""

    start: Seconds
    end: Seconds
    power: tuple[float, float] | None = None


class SleepAccount:
    """Of one engine. ``saved`` with its ``error`` is of ``measured`` seconds; both are None while there are none.

    ``energy`` is None where nothing measures. Belongs to one thread.
    """

    def __init__(self, energy: EnergyBetween | None) -> None:
        self.saved: Joules | None = None
        self.error: Joules | None = None
        self.measured = 0.0
        self._energy = energy
        self._awake: _Awake | None = None
        self._pieces: deque[tuple[_Awake, Seconds, Seconds]] = deque()

    @property
    def look_every(self) -> Seconds | None:
        """How often a sleep wants to be told of; None where nothing would come of it."""
        return None if self._energy is None else PIECE

    def begin(self, idle_since: Seconds, began: Seconds) -> None:
        """A sleep begins, after an idle time awake."""
        self._awake = _Awake(max(idle_since, Seconds(began - PIECE)), began) if began > idle_since else None

    def slept(self, start: Seconds, end: Seconds) -> None:
        """The next piece of the sleep that began: parking is in its first, waking in its last."""
        if self._energy is not None and self._awake is not None and end > start:
            self._pieces.append((self._awake, start, end))

    def settle(self, now: Seconds) -> None:
        """Take over every piece that is covered by now, in order; cheap while there is none."""
        while self._pieces and (self._take(*self._pieces[0]) or now - self._pieces[0][2] > _PATIENCE):
            self._pieces.popleft()

    def _take(self, awake: _Awake, start: Seconds, end: Seconds) -> bool:
        """Add a piece, if the sensors know of it."""
        if self._energy is None:
            return False
        before = None if awake.power is not None else self._energy(awake.start, awake.end)
        if before is not None:
            seconds = awake.end - awake.start
            awake.power = before.joules / seconds, before.error / seconds
        asleep = self._energy(start, end)
        if awake.power is None or asleep is None:
            return False
        watts, error = awake.power
        self.saved = Joules((self.saved or 0.0) + watts * (end - start) - asleep.joules)
        self.error = Joules((self.error or 0.0) + error * (end - start) + asleep.error)
        self.measured += end - start
        return True
