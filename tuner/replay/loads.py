"""How sessions come: a closed loop keeps a number of them alive, an open loop starts them on time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from energyopt.core.errors import ConfigError
from energyopt.core.units import Seconds

from ..workload.arrivals import Arrivals
from ..workload.trace import Trace
from .player import Player, Stage, Start


class Load(Protocol):
    """Plays sessions on a stage until it has no more or the stage's dispatcher is stopped."""

    async def run(self, stage: Stage) -> None: ...


@dataclass(frozen=True, slots=True)
class Deck:
    """The order of session starts. ``bust`` gives each start content of its own; otherwise only repetitions get one,
    and keep the system prompt where it is a text: a service shares it over all of its sessions.

    ``rounds`` None deals for ever. ``shuffle`` is a seed for another order in every round; None keeps the trace's.
    """

    trace: Trace
    bust: bool = False
    rounds: int | None = None
    shuffle: int | None = None

    def deal(self) -> Iterator[Start]:
        """The starts, one by one."""
        number, cycle = 0, 0
        while self.rounds is None or cycle < self.rounds:
            sessions = list(self.trace.sessions)
            if self.shuffle is not None:
                random.Random(f"{self.shuffle}/{cycle}").shuffle(sessions)
            for session in sessions:
                salt = f"s{number}" if self.bust else (f"c{cycle}" if cycle else "")
                yield Start(f"{session.id}~{cycle}" if cycle else session.id, session, salt, apart=self.bust)
                number += 1
            cycle += 1


class ClosedLoop:
    """``lanes`` sessions alive at once. A lane holds one tree until it has drained, then takes the next start."""

    def __init__(self, starts: Iterator[Start], lanes: int) -> None:
        if lanes < 1:
            raise ConfigError(f"A closed loop needs at least 1 lane, not {lanes}.")
        self._starts, self._lanes = starts, lanes

    async def run(self, stage: Stage) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._lanes):
                group.create_task(self._lane(stage))

    async def _lane(self, stage: Stage) -> None:
        for start in self._starts:
            if stage.dispatcher.stopping.is_set():
                return
            await Player(stage, start).play()


class OpenLoop:
    """Sessions start when it is their time, however many are alive.

    ``times`` are seconds from the start, in the order of ``starts``; the loop ends with the shorter of both.
    """

    def __init__(self, starts: Iterator[Start], times: Sequence[Seconds]) -> None:
        self._starts, self._times = starts, times

    async def run(self, stage: Stage) -> None:
        begun = stage.pacer.now
        async with asyncio.TaskGroup() as group:
            for time, start in zip(self._times, self._starts, strict=False):
                if await _stopped(stage, begun + time):
                    return
                group.create_task(Player(stage, start).play())


async def _stopped(stage: Stage, due: float) -> bool:
    """Wait until replay time ``due``, looking up now and then; whether the replay was stopped."""
    while not stage.dispatcher.stopping.is_set() and (left := due - stage.pacer.now) > 0:
        await stage.pacer.wait_until(min(due, stage.pacer.now + min(left, 0.25)))
    return stage.dispatcher.stopping.is_set()


def recorded_times(trace: Trace, speedup: float) -> list[Seconds]:
    """The recorded arrivals, divided by ``speedup``. Raises ConfigError for a trace without them."""
    if any(session.arrival is None for session in trace.sessions):
        raise ConfigError(f"The trace {trace.name} has no arrival times: give a rate, or a concurrency.")
    return [Seconds((session.arrival or 0.0) / speedup) for session in trace.sessions]


def drawn_times(arrivals: Arrivals, count: int, seed: int) -> list[Seconds]:
    """``count`` arrivals of a random process."""
    return arrivals.times(count, random.Random(f"arrivals/{seed}"))


class RandomDeparture:
    """A share of the users leaves after a time drawn up to ``within`` seconds."""

    def __init__(self, share: float, within: Seconds, seed: int) -> None:
        if not (0 <= share <= 1 and within > 0):
            raise ConfigError(f"Abandonment needs a share from 0 to 1 and a time above 0; got {share} and {within} s.")
        self._share, self._within, self._rng = share, within, random.Random(f"leave/{seed}")

    def draw(self) -> Seconds | None:
        if self._rng.random() >= self._share:
            return None
        return Seconds(self._rng.uniform(0.0, self._within))
