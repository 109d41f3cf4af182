"""The engines of both pools as the front sees them: who is up, who does what, who has least to do.

A role says which legs an engine is given, not what it can do: each can do both. So an engine whose role changes
finishes what it has, and a pool without an engine is helped by the other. Every method may be called from any thread.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from energyopt.core.clock import Clock
from energyopt.core.errors import ConfigError

SHUNNED = 1.0
"""Seconds for which an engine gets no leg after a connection to it broke: its supervisor knows soon what it is."""


class Role(StrEnum):
    """Which legs an engine is given."""

    PREFILL = "prefill"
    DECODE = "decode"

    @property
    def other(self) -> Role:
        return Role.DECODE if self is Role.PREFILL else Role.PREFILL


@dataclass(slots=True, eq=False)
class Worker:
    """One engine; ``url`` is None while it is down.

    ``legs`` that it has now, by role; ``served`` are those that came to a good end, ``given`` all that it ever got.
    """

    name: str
    role: Role
    url: str | None = None
    shunned_until: float = 0.0
    given: int = 0
    legs: Counter[Role] = field(default_factory=Counter)
    served: Counter[Role] = field(default_factory=Counter)


class Pools:
    """The engines by name. Raises ConfigError without one of each role."""

    def __init__(self, roles: Mapping[str, Role], clock: Clock) -> None:
        if set(roles.values()) != set(Role):
            raise ConfigError("Both pools need at least 1 engine.")
        self._workers = {name: Worker(name, role) for name, role in roles.items()}
        self.closed = False
        self._clock = clock
        self._lock = threading.Lock()

    @property
    def workers(self) -> tuple[Worker, ...]:
        return tuple(self._workers.values())

    def count(self, role: Role) -> int:
        """Engines of a role, up or not."""
        return sum(worker.role is role for worker in self._workers.values())

    def up(self, name: str, url: str) -> None:
        with self._lock:
            worker = self._workers[name]
            worker.url, worker.shunned_until = url, 0.0

    def down(self, name: str) -> None:
        with self._lock:
            self._workers[name].url = None

    def close(self) -> None:
        """Nothing more will come up: whoever waits for an engine waits in vain."""
        self.closed = True

    def shun(self, worker: Worker) -> None:
        """A connection broke."""
        worker.shunned_until = self._clock.now() + SHUNNED

    @contextmanager
    def leg(self, role: Role, *, fallback: bool = False, without: Container[str] = ()) -> Iterator[Worker | None]:
        """The least busy engine of a role, with one leg more while the block runs; None if none is up.

        ``fallback`` takes one of the other role then. ``without`` are names of those that are of no use to the caller.
        """
        with self._lock:
            worker = self._least(role, without) or (self._least(role.other, without) if fallback else None)
            if worker is not None:
                worker.legs[role] += 1
                worker.given += 1
        try:
            yield worker
        finally:
            if worker is not None:
                with self._lock:
                    worker.legs[role] -= 1

    def served(self, worker: Worker, role: Role) -> None:
        """A leg came to a good end. What was refused, broken off or left alone says nothing of an engine's rate."""
        with self._lock:
            worker.served[role] += 1

    def any_up(self) -> Worker | None:
        """An engine for what is no leg, such as a list of models: it has none more for it.

        Where all that are up are shunned, the one whose broken connection is oldest is better than none.
        """
        with self._lock:
            oldest = min((w for w in self.workers if w.url is not None), key=lambda w: w.shunned_until, default=None)
            return self._least(Role.DECODE) or self._least(Role.PREFILL) or oldest

    def resize(self, prefill: int) -> tuple[str, ...]:
        """Let so many engines prefill and the others decode; the names of those whose role changes.

        Those with least to do change first. Raises ConfigError unless both pools keep one.
        """
        if not 1 <= prefill < len(self._workers):
            raise ConfigError(
                f"prefill = {prefill} is not allowed: of {len(self._workers)} engines both pools need at least 1."
            )
        with self._lock:
            surplus = self.count(Role.PREFILL) - prefill
            role = Role.PREFILL if surplus > 0 else Role.DECODE
            mine = sorted((w for w in self._workers.values() if w.role is role), key=lambda w: w.legs.total())
            for worker in mine[: abs(surplus)]:
                worker.role = role.other
            return tuple(worker.name for worker in mine[: abs(surplus)])

    def _least(self, role: Role, without: Container[str] = ()) -> Worker | None:
        now = self._clock.now()
        up = [w for w in self.workers if w.role is role and w.url is not None]
        fit = [w for w in up if w.shunned_until <= now and w.name not in without]
        return min(fit, key=lambda w: (w.legs.total(), w.given), default=None)
