"""When an engine that nobody asks falls asleep, when it wakes, and what that saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from energyopt.core.clock import Clock
from energyopt.core.errors import ConfigError
from energyopt.core.results import EnergyTotal
from energyopt.core.units import Bytes, Joules, Seconds

EnergyBetween = Callable[[float, float], EnergyTotal | None]


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
        """Take the memory again: the runner computes as before, over an empty pool. Raises OutOfMemoryError."""
        ...


@dataclass(frozen=True, slots=True)
class SleepCounts:
    """Since start. ``saved`` is what the devices would have drawn awake and idle, less what they drew asleep.

    It is None until both powers were measured. ``freed`` is what the last sleep gave back.
    """

    asleep: bool = False
    sleeps: int = 0
    seconds: float = 0.0
    freed: Bytes | None = None
    saved: Joules | None = None


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

    The power awake is that of the idle time before the sleep. Sensors lag, so a sleep is accounted for when it ends.
    """

    def __init__(
        self, runner: Sleeper, after: Seconds, clock: Clock, forget: Callable[[], object], energy: EnergyBetween | None
    ) -> None:
        self.counts = SleepCounts()
        self._runner = runner
        self._after = after
        self._clock = clock
        self._forget = forget
        self._energy = energy
        self._idle_since = clock.now()
        self._asleep_since: Seconds | None = None

    @property
    def patience(self) -> Seconds | None:
        """How long to wait for work before the next look; None is for ever, as it sleeps already."""
        if self._asleep_since is not None:
            return None
        return Seconds(max(0.0, self._idle_since + self._after - self._clock.now()))

    def turn(self, work: bool) -> None:
        """Called once a turn of the engine's loop: wakes for work, sleeps when there has been none for long enough."""
        if work:
            if self._asleep_since is not None:
                self._wake(self._asleep_since)
            self._idle_since = self._clock.now()
        elif self._asleep_since is None and self._clock.now() >= self._idle_since + self._after:
            self._sleep()

    def _sleep(self) -> None:
        self._forget()  # what the device's pool holds is lost; tiers below keep what they have
        freed = self._runner.sleep()
        self._asleep_since = self._clock.now()
        known = self.counts
        self.counts = SleepCounts(True, known.sleeps + 1, known.seconds, freed, known.saved)

    def _wake(self, since: Seconds) -> None:
        now = self._clock.now()
        saved = self._saved(since, now)
        self._runner.wake()
        self._asleep_since = None
        known = self.counts
        total = known.saved if saved is None else Joules((known.saved or 0.0) + saved)
        self.counts = SleepCounts(False, known.sleeps, known.seconds + now - since, known.freed, total)

    def _saved(self, since: Seconds, now: Seconds) -> float | None:
        """Power before times the time asleep, less the energy of that time. The end counts as far as it is covered."""
        if self._energy is None or now <= since:
            return None
        awake = self._energy(self._idle_since, since)
        end = now if self._energy(since, now) is not None else Seconds(since + 0.9 * (now - since))
        asleep = self._energy(since, end)
        idle_time = since - self._idle_since
        if awake is None or asleep is None or idle_time <= 0:
            return None
        scale = (now - since) / (end - since)
        return awake.joules / idle_time * (now - since) - asleep.joules * scale
