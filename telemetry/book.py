"""One sensor's settled energy by what it was for, in whole nanojoules that sum to the sensor exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from energyopt.core.records import Phase

from .attribute import Attribution
from .idle import IdlePolicy
from .owners import Owner


class Use(NamedTuple):
    """Energy of requests: whose, in which phase, divided by which rule."""

    tenant: str
    phase: Phase
    method: str


class Book:
    """Only grows. ``used`` and ``tiers`` divide the same joules of requests, ``idle`` is by tenant or NOBODY."""

    def __init__(self) -> None:
        self.idle: Counter[str] = Counter()
        self.overhead = 0
        self.used: Counter[Use] = Counter()
        self.tiers: Counter[str] = Counter()
        self._by_tenant: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return self.overhead + self.idle.total() + self.used.total()

    def phase(self, phase: Phase) -> int:
        return sum(amount for use, amount in self.used.items() if use.phase is phase)

    def charge(self, result: Attribution, method: str, owner: Callable[[str], Owner], policy: IdlePolicy) -> None:
        """Take over what ``result`` holds. Idle time is divided by use up to and including this."""
        for (request_id, phase), amount in result.requests.items():
            tenant = owner(request_id).tenant
            self.used[Use(tenant, phase, method)] += amount
            self._by_tenant[tenant] += amount
        self.tiers.update(result.tiers)
        self.overhead += result.overhead
        self.rest(result.idle, policy)

    def rest(self, amount: int, policy: IdlePolicy) -> None:
        """Take over energy of time in which nothing ran."""
        if amount:
            self.idle.update(policy.divide(amount, self._by_tenant))

    def add(self, other: Book) -> None:
        """Add another sensor's."""
        self.overhead += other.overhead
        for mine, theirs in ((self.idle, other.idle), (self.tiers, other.tiers), (self._by_tenant, other._by_tenant)):
            mine.update(theirs)
        self.used.update(other.used)

    def split(self) -> Attribution:
        """By purpose alone, under no request's name."""
        found = Attribution(self.idle.total(), self.overhead)
        for phase in Phase:
            found.requests["", phase] = self.phase(phase)
        return found
