"""The governor at work: measures, decides, sets, and keeps account of it."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from energyopt.core.clock import Clock
from energyopt.core.config import PowerConfig
from energyopt.core.errors import ControlError
from energyopt.core.units import Hertz, Seconds, Watts

from .governor import Decision, Governor, Situation
from .window import LatencyWindow

log = logging.getLogger(__name__)

EVERY = Seconds(0.25)
"""Short, so that a burst is met before it becomes a violation; going down waits for whole windows anyway."""


class Lever(Protocol):
    """Limits that can be changed; a held lease is one."""

    def adjust(self, power: PowerConfig) -> None: ...


@dataclass(frozen=True, slots=True)
class Actuator:
    """What a level means: the SM clock in hertz, or the cap in watts where clocks cannot be bounded."""

    kind: str
    floor: float
    top: float
    grain: float

    def power(self, level: float) -> PowerConfig:
        if self.kind == "sm_clock":
            return PowerConfig(sm_clock=Hertz(level))
        return PowerConfig(cap=Watts(level))

    def said(self, level: float) -> str:
        return f"{level / 1e6:.0f} MHz" if self.kind == "sm_clock" else f"{level:.0f} W"


class GovernorLoop:
    """One decision a turn, which ``tell`` hears of where it changes something.

    ``counts`` is by reason; ``refused`` counts changes that a device or the helper refused; ``margin`` is the newest
    that was known.
    """

    def __init__(
        self,
        governor: Governor,
        window: LatencyWindow,
        lever: Lever,
        actuator: Actuator,
        clock: Clock,
        tell: Callable[[str], None] = log.info,
    ) -> None:
        self._governor = governor
        self._window = window
        self._lever = lever
        self._actuator = actuator
        self._clock = clock
        self._tell = tell
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.level = actuator.top
        self.margin: float | None = None
        self.counts: Counter[str] = Counter()
        self.refused = 0

    @property
    def actuator(self) -> Actuator:
        return self._actuator

    def turn(self) -> Decision:
        """Measure, decide, set; says in the log what changed and why, and at debug level why nothing did."""
        now = self._clock.now()
        measures, pace = self._window.measures(now), self._window.pace(now)
        decision = self._governor.decide(Situation(now, self.level, measures, pace, self._window.oldest(now)))
        self.margin = decision.margin if decision.margin is not None else self.margin
        self.counts[decision.reason.value] += 1
        before, after = self._said(self.level), self._said(decision.level)
        if decision.level == self.level:
            log.debug("governor: %s stays: %s: %s", before, decision.reason, decision.words)
            return decision
        self._tell(f"governor: {before} to {after}: {decision.reason}: {decision.words}")
        try:
            self._lever.adjust(self._actuator.power(decision.level))
            self.level = decision.level
        except ControlError as error:
            self.refused += 1
            self._tell(f"governor: {after} was refused: {error}")
        return decision

    def start(self) -> None:
        """Turns in a thread, until ``end``."""
        self._thread = threading.Thread(target=self._run, name="governor", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(EVERY):
            self.turn()

    def _said(self, level: float) -> str:
        return self._actuator.said(level)
