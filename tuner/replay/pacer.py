"""Waiting as a recording says, but not for ever: times divided, long gaps cut, and an idle system woken."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from energyopt.core.clock import Clock
from energyopt.core.errors import ConfigError
from energyopt.core.units import Seconds


@dataclass(frozen=True, slots=True)
class Pace:
    """``speedup`` divides every recorded time. ``gap_cap`` bounds a single wait, None does not.

    ``idle_cap``: when nothing has been in flight for so long, everybody's waiting is cut by what is left until the
    earliest is due. ``waits`` False leaves out all recorded waiting.
    """

    speedup: float = 1.0
    gap_cap: Seconds | None = None
    idle_cap: Seconds | None = None
    waits: bool = True

    def __post_init__(self) -> None:
        if not self.speedup > 0 or (self.gap_cap or 0) < 0 or (self.idle_cap or 0) < 0:
            raise ConfigError("A pace needs a speedup above 0 and caps of at least 0 s.")

    def of(self, gap: float) -> Seconds:
        """The wait for a recorded gap."""
        wait = max(0.0, gap) / self.speedup if self.waits else 0.0
        return Seconds(wait if self.gap_cap is None else min(wait, self.gap_cap))


class Pacer:
    """Lets tasks wait until an instant of replay time, which runs with the clock and leaps over idle time.

    ``now`` is replay time; ``skipped`` says how much was leapt over. ``busy`` and ``idle`` tell it when requests are in
    flight. Belongs to one event loop.
    """

    def __init__(self, clock: Clock, idle_cap: Seconds | None) -> None:
        self._clock, self._cap = clock, idle_cap
        self.skipped = 0.0
        self._due: dict[int, float] = {}
        self._leap = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._in_flight = 0
        self._next = 0

    @property
    def now(self) -> float:
        return self._clock.now() + self.skipped

    async def wait_until(self, due: float) -> None:
        """Return at replay time ``due``; at once if that is over."""
        mine, self._next = self._next, self._next + 1
        self._due[mine] = due
        self._arm()
        try:
            while (left := due - self.now) > 0:
                leap = self._leap
                try:
                    await asyncio.wait_for(leap.wait(), left)
                except TimeoutError:
                    continue
        finally:
            del self._due[mine]

    def busy(self) -> None:
        """One more request is in flight."""
        self._in_flight += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def idle(self) -> None:
        """One request less."""
        self._in_flight -= 1
        self._arm()

    def _arm(self) -> None:
        if self._cap is not None and self._in_flight == 0 and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._cap, self._wake)

    def _wake(self) -> None:
        self._timer = None
        if self._in_flight or not self._due:
            return
        self.skipped += max(0.0, min(self._due.values()) - self.now)
        self._leap.set()
        self._leap = asyncio.Event()
        self._arm()
