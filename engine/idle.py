"""When an engine that nobody asks falls asleep, when it wakes, and what that saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from energyopt.core.clock import Clock
from energyopt.core.errors import ConfigError, OutOfMemoryError
from energyopt.core.units import Bytes, Joules, Seconds

from .sleep_account import EnergyBetween, SleepAccount


@runtime_checkable
class Sleeper(Protocol):
    """What a Runner also is if it can give its device's memory back while it has nothing to do."""

    @property
    def sleeps(self) -> bool:
        """Whether there is memory to give back: a CPU's is the machine's own."""
        ...

    def sleep(self) -> Bytes:
        """Free device memory, keeping weights elsewhere; the KV pool's content is lost. Returns the bytes freed."""
        ...

    def wake(self) -> None:
        """Take the memory again: the runner computes as before, over an empty pool.

        Raises OutOfMemoryError; then it sleeps as before.
        """
        ...


@dataclass(frozen=True, slots=True)
class SleepCounts:
    """Since start. ``saved`` is what the devices would have drawn awake and idle, less what they drew asleep.

    It is about ``measured`` seconds asleep, with the half-width ``error``; both are None while nothing was measured.
    ``freed`` is what the last sleep gave back, ``refused`` how often there was no memory to wake.
    """

    asleep: bool = False
    sleeps: int = 0
    seconds: float = 0.0
    freed: Bytes | None = None
    saved: Joules | None = None
    error: Joules | None = None
    measured: float = 0.0
    refused: int = 0


def idle_sleep_for(
    after: Seconds | None, runner: object, clock: Clock, forget: Callable[[], object], energy: EnergyBetween | None
) -> IdleSleep | None:
    """As configured. Raises ConfigError for a runner that gives nothing back."""
    if after is None:
        return None
    if not (isinstance(runner, Sleeper) and runner.sleeps):
        raise ConfigError(f"idle_sleep = {after:g} is not possible: this engine has no device memory to give back.")
    return IdleSleep(runner, after, clock, forget, energy)


class IdleSleep:
    """Puts a runner to sleep after ``after`` seconds without work. Belongs to the engine's thread, but for ``counts``.

    ``seconds`` are counted when a sleep ends, joules as the sensors tell them.
    """

    def __init__(
        self, runner: Sleeper, after: Seconds, clock: Clock, forget: Callable[[], object], energy: EnergyBetween | None
    ) -> None:
        self.counts = SleepCounts()
        self._runner = runner
        self._after = after
        self._clock = clock
        self._forget = forget
        self._account = SleepAccount(energy)
        self._idle_since = clock.now()
        self._worked = False
        self._asleep_since: Seconds | None = None
        self._told_until = self._idle_since

    @property
    def patience(self) -> Seconds | None:
        """How long to wait for work before the next look; None is for ever, as it sleeps already, unmeasured."""
        if self._asleep_since is not None:
            return self._account.look_every
        return Seconds(max(0.0, self._idle_since + self._after - self._clock.now()))

    def rest(self) -> None:
        """No work is left, whose last step has ended: idle time begins here, unless it has."""
        if self._worked:
            self._worked, self._idle_since = False, self._clock.now()

    def turn(self, work: bool) -> None:
        """Called once a turn of the engine's loop: wakes for work, sleeps when there has been none for long enough.

        Raises OutOfMemoryError where there is no memory to wake: it sleeps on, and the next work is another try.
        """
        if work:
            if self._asleep_since is not None:
                self._wake(self._asleep_since)
            self._worked, self._idle_since = True, self._clock.now()
        elif self._asleep_since is not None:
            self._tell()
        elif self._clock.now() >= self._idle_since + self._after:
            self._sleep()
        self._settle()

    def _sleep(self) -> None:
        began = self._clock.now()
        self._account.begin(self._idle_since, began)
        self._forget()  # what the device's pool holds is lost; tiers below keep what they have
        freed = self._runner.sleep()
        self._asleep_since = self._told_until = began
        self.counts = replace(self.counts, asleep=True, sleeps=self.counts.sleeps + 1, freed=freed)

    def _wake(self, since: Seconds) -> None:
        try:
            self._runner.wake()
        except OutOfMemoryError:
            self.counts = replace(self.counts, refused=self.counts.refused + 1)
            raise
        self._tell()
        self._asleep_since = None
        self.counts = replace(self.counts, asleep=False, seconds=self.counts.seconds + self._clock.now() - since)

    def _tell(self) -> None:
        """The account learns how long it has slept."""
        now = self._clock.now()
        self._account.slept(self._told_until, now)
        self._told_until = now

    def _settle(self) -> None:
        account = self._account
        account.settle(self._clock.now())
        if account.measured != self.counts.measured:
            self.counts = replace(self.counts, saved=account.saved, error=account.error, measured=account.measured)
