"""The prefill side's promises: which blocks wait for which other engine, and until when.

A lease ends when its blocks were fetched and released, when nobody renewed it in time, or when it is as old as any
lease may be. While somebody reads its blocks it stays. Every method may be called from any thread.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from energyopt.core.clock import Clock

from .errors import HandOverError, Reason

LEASE_SECONDS = 30.0
LONGEST_LEASE = 480.0
"""Seconds that heartbeats can keep a lease alive: whoever renews for ever must not keep the pool for ever."""


@dataclass(slots=True, eq=False)
class Lease:
    """Blocks per group of layers, of the prompt that ``digest`` names. ``readers`` are reading now."""

    id: str
    tables: tuple[tuple[int, ...], ...]
    num_tokens: int
    digest: bytes
    born: float
    expires: float
    readers: int = 0
    over: bool = False


class LeaseBook:
    """``seconds`` is how long a lease lasts without a heartbeat."""

    def __init__(self, clock: Clock, *, seconds: float = LEASE_SECONDS, longest: float = LONGEST_LEASE) -> None:
        self.seconds = seconds
        self._clock = clock
        self._longest = longest
        self._leases: dict[str, Lease] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Leases whose blocks are still kept."""
        return len(self._leases)

    def lend(self, tables: tuple[tuple[int, ...], ...], num_tokens: int, digest: bytes) -> Lease:
        now = self._clock.now()
        lease = Lease(secrets.token_hex(16), tables, num_tokens, digest, now, now + self.seconds)
        with self._lock:
            self._leases[lease.id] = lease
        return lease

    @contextmanager
    def reading(self, lease_id: str) -> Iterator[Lease]:
        """The lease, kept while it is read. Raises HandOverError (GONE)."""
        with self._lock:
            lease = self._live(lease_id)
            lease.readers += 1
        try:
            yield lease
        finally:
            with self._lock:
                lease.readers -= 1
                self._extend(lease)

    def renew(self, lease_id: str) -> None:
        """A heartbeat. Raises HandOverError (GONE)."""
        with self._lock:
            self._extend(self._live(lease_id))

    def release(self, lease_id: str) -> None:
        """The blocks were fetched, or nobody will; an unknown lease is no error."""
        with self._lock:
            if (lease := self._leases.get(lease_id)) is not None:
                lease.over = True

    def returned(self) -> list[Lease]:
        """Take out every lease that is over or expired and that nobody reads: its blocks may be reused."""
        now = self._clock.now()
        with self._lock:
            ended = [lease for lease in self._leases.values() if not lease.readers and self._ended(lease, now)]
            for lease in ended:
                del self._leases[lease.id]
        return ended

    def _live(self, lease_id: str) -> Lease:
        lease = self._leases.get(lease_id)
        if lease is None or self._ended(lease, self._clock.now()):
            raise HandOverError(Reason.GONE, "The lease of these KV blocks has ended.")
        return lease

    def _ended(self, lease: Lease, now: float) -> bool:
        return lease.over or now > lease.expires

    def _extend(self, lease: Lease) -> None:
        lease.expires = min(self._clock.now() + self.seconds, lease.born + self._longest)
