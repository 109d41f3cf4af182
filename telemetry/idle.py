"""Who answers for the energy of time in which nothing ran: policies, each one rule without state.

Energy of an idle device was drawn for no request, so it is never added to a request's joules; a policy only says in
whose account it appears. Amounts are whole nanojoules and the parts always sum to the amount.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from energyopt.core.errors import ConfigError

from .divide import divide
from .owners import NOBODY

POLICIES = ("separate", "share", "reservation")


class IdlePolicy(Protocol):
    """Divides idle energy among tenants and NOBODY."""

    @property
    def name(self) -> str:
        """One of POLICIES."""
        ...

    def divide(self, amount: int, used: Mapping[str, int]) -> Mapping[str, int]:
        """Parts of ``amount``; ``used`` is what each tenant's requests took so far."""
        ...


class SeparateIdle:
    """Idle energy is a bucket of its own: the operator answers for it."""

    name = "separate"

    def divide(self, amount: int, used: Mapping[str, int]) -> Mapping[str, int]:
        return {NOBODY: amount}


class SharedIdle:
    """Idle energy follows use: each tenant's part is its part of all active energy so far; nobody's before any."""

    name = "share"

    def divide(self, amount: int, used: Mapping[str, int]) -> Mapping[str, int]:
        if not any(used.values()):
            return {NOBODY: amount}
        return dict(zip(used, divide(amount, [float(part) for part in used.values()]), strict=True))


class ReservedIdle:
    """Idle energy follows reservations: shares of the machine by tenant; what nobody reserved is nobody's.

    Raises ConfigError unless every share is above 0 and they sum to at most 1.
    """

    name = "reservation"

    def __init__(self, shares: Mapping[str, float]) -> None:
        for tenant, share in shares.items():
            if not (math.isfinite(share) and 0 < share <= 1):
                raise ConfigError(f"The reservation {tenant}={share} is not allowed: a share is above 0 and at most 1.")
        total = math.fsum(shares.values())
        if not shares or total > 1 + 1e-9:
            raise ConfigError(f"Reservations of {total:g} in sum are not allowed: shares of at least one tenant, to 1.")
        self._shares = {**shares, NOBODY: max(0.0, 1 - total)}

    def divide(self, amount: int, used: Mapping[str, int]) -> Mapping[str, int]:
        return dict(zip(self._shares, divide(amount, list(self._shares.values())), strict=True))


def idle_policy(name: str, reservations: Mapping[str, float] | None = None) -> IdlePolicy:
    """The policy of that name. Raises ConfigError for an unknown one, or reservations that it cannot use."""
    if name not in POLICIES:
        raise ConfigError(f"idle energy = {name!r} is not allowed: expected one of {', '.join(POLICIES)}.")
    if name != "reservation" and reservations:
        raise ConfigError(f"Reservations are used by the idle policy reservation only, not by {name}.")
    if name == "reservation":
        return ReservedIdle(reservations or {})
    return SharedIdle() if name == "share" else SeparateIdle()
