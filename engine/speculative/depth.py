"""How deep to guess: as deep as pays, by the joules of a step where they are measured, else by its time.

A step over ``rows`` positions costs about ``fixed + slope x rows``: it reads the weights once, and computes each
position. With a chance ``s(i)`` that the first ``i`` guesses of a draft come true, ``n`` requests that guess ``k``
tokens yield ``n (1 + s(1) + ... + s(k))`` tokens for ``n (1 + k)`` rows. The depth with the least cost per token is
taken (after vLLM's adaptive verification, with joules in the place of its milliseconds).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from energyopt.core.results import EnergyTotal
from energyopt.core.units import Seconds

from .step_cost import StepCost

EnergyBetween = Callable[[float, float], EnergyTotal | None]

_PROBE_EVERY = 128
"""Steps between probes, which do the other thing: enough to notice a change, too few to cost a percent."""
_GAIN = 0.02
"""A depth must save this share per token, or not guessing is as good."""
_DECAY = 0.98
"""Weight of a draft's outcome when the next one comes: about the last fifty count."""
_OPTIMISM = 0.6
"""The chance of a guess that was never tried."""
_UNSETTLED = 256
_PATIENCE = 30.0
"""Seconds after which a step that the sensors do not cover is given up."""


class AdaptiveDepth:
    """Satisfies ``DepthPolicy``. Until costs are known it goes through all depths, so that they become known."""

    def __init__(self, deepest: int, energy: EnergyBetween | None = None) -> None:
        self.deepest = deepest
        self._energy = energy
        self._seconds, self._joules = StepCost(), StepCost()
        self._tried, self._true = [0.0] * deepest, [0.0] * deepest
        self._waiting: deque[tuple[int, Seconds, Seconds]] = deque(maxlen=_UNSETTLED)
        self._steps = 0

    @property
    def by_joules(self) -> bool:
        """Whether depths are chosen by joules; by time otherwise."""
        return self._joules.line is not None

    def depth(self, requests: int) -> int:
        self._steps += 1
        best = self.best(requests)
        if best is None:
            return self._steps % (self.deepest + 1)
        if self._steps % _PROBE_EVERY:
            return best
        return 0 if best else 1 + self._steps // _PROBE_EVERY % self.deepest

    def best(self, requests: int) -> int | None:
        """The depth with the least cost per token; None while nothing is known."""
        line = self._joules.line or self._seconds.line
        if line is None:
            return None
        fixed, slope = line
        plain = (fixed + slope * requests) / requests
        cheapest, best, gained, survived = plain * (1 - _GAIN), 0, 1.0, 1.0
        for depth in range(1, self.deepest + 1):
            survived *= self.chance(depth - 1)
            gained += survived
            cost = (fixed + slope * requests * (1 + depth)) / (requests * gained)
            if cost < cheapest:
                cheapest, best = cost, depth
        return best

    def chance(self, place: int) -> float:
        """How likely the guess at ``place`` comes true if those before it did."""
        return self._true[place] / self._tried[place] if self._tried[place] > 0.5 else _OPTIMISM

    def verified(self, drafted: int, accepted: int) -> None:
        for place in range(min(drafted, accepted + 1)):
            self._tried[place] = self._tried[place] * _DECAY + 1
            self._true[place] = self._true[place] * _DECAY + (place < accepted)

    def stepped(self, rows: int, start: Seconds, end: Seconds) -> None:
        self._seconds.observe(rows, end - start)
        if self._energy is None:
            return
        self._waiting.append((rows, start, end))
        self._settle(self._energy, end)

    def _settle(self, energy: EnergyBetween, now: Seconds) -> None:
        """Ask the sensors about steps that they did not cover before."""
        while self._waiting:
            rows, start, end = self._waiting[0]
            total = energy(start, end)
            if total is None and now - end < _PATIENCE:
                return
            self._waiting.popleft()
            if total is not None:
                self._joules.observe(rows, total.joules)
