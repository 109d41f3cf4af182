"""The router's own account of what it gave to whom and what of that still runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from energyopt.core.units import Seconds

from .ports import WorkerLoad

FADING = Seconds(600.0)
"""Seconds in which recent work fades to 1/e: long against a session's pauses, short against a day's load."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What does not change about a worker; see ``WorkerLoad``."""

    speed: float = 1.0
    joules_per_token: float | None = None


@dataclass(slots=True)
class Ticket:
    """One request under way. ``fresh`` prompt tokens are expected to be computed."""

    worker: str
    prompt_tokens: int
    fresh: int
    begun: bool = False
    ended: bool = False


@dataclass(slots=True)
class _Account:
    prefill: int = 0
    decode: int = 0
    requests: int = 0
    recent: float = 0.0
    at: float = 0.0


@dataclass(slots=True)
class Book:
    """Loads by worker. Every ticket that was sent must be ended once; ending it again changes nothing."""

    traits: Mapping[str, Traits] = field(default_factory=dict)
    fading: float = FADING
    _accounts: dict[str, _Account] = field(default_factory=dict)

    def loads(self, workers: Iterable[str], now: Seconds) -> list[WorkerLoad]:
        """The loads of ``workers``, in their order."""
        return [self._load(worker, now) for worker in workers]

    def requests(self, worker: str) -> int:
        """Requests under way at a worker."""
        account = self._accounts.get(worker)
        return 0 if account is None else account.requests

    def sent(self, worker: str, prompt_tokens: int, cached_tokens: int, now: Seconds) -> Ticket:
        """A request leaves for ``worker``."""
        account = self._accounts.setdefault(worker, _Account(at=now))
        fresh = max(1, prompt_tokens - cached_tokens)
        account.prefill += fresh
        account.requests += 1
        self._add(account, fresh, now)
        return Ticket(worker, prompt_tokens, fresh)

    def began(self, ticket: Ticket) -> None:
        """The first byte of its answer is here: its prompt is computed."""
        if not ticket.begun and not ticket.ended:
            ticket.begun = True
            account = self._accounts[ticket.worker]
            account.prefill -= ticket.fresh
            account.decode += ticket.prompt_tokens

    def ended(self, ticket: Ticket, now: Seconds, output_tokens: int = 0) -> None:
        """Its answer is complete, or nobody waits for it any more."""
        if ticket.ended:
            return
        ticket.ended = True
        account = self._accounts[ticket.worker]
        account.requests -= 1
        if ticket.begun:
            account.decode -= ticket.prompt_tokens
        else:
            account.prefill -= ticket.fresh
        self._add(account, output_tokens, now)

    def _add(self, account: _Account, tokens: int, now: Seconds) -> None:
        account.recent = self._faded(account, now) + tokens
        account.at = now

    def _faded(self, account: _Account, now: Seconds) -> float:
        return account.recent * math.exp(min(0.0, (account.at - now) / self.fading))

    def _load(self, worker: str, now: Seconds) -> WorkerLoad:
        account = self._accounts.get(worker) or _Account()
        traits = self.traits.get(worker) or Traits()
        return WorkerLoad(
            worker,
            prefill_tokens=account.prefill,
            decode_tokens=account.decode,
            requests=account.requests,
            recent_tokens=self._faded(account, now),
            speed=traits.speed,
            joules_per_token=traits.joules_per_token,
        )
