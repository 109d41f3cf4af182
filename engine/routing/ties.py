"""Deciding between workers that are equally good: by rendezvous hashing, so that others stay when one leaves."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from .ports import RouteRequest, WorkerLoad


class TieBreaker:
    """Equal keys meet at the same worker; requests without a key take turns. ``seed`` makes another order of both."""

    def __init__(self, seed: int = 0) -> None:
        self._salt = seed.to_bytes(8, "little", signed=True)
        self._turn = 0

    def least(
        self, request: RouteRequest, workers: Sequence[WorkerLoad], cost: Callable[[WorkerLoad], float]
    ) -> WorkerLoad:
        """The cheapest worker; among equally cheap ones the key decides."""
        costs = [cost(worker) for worker in workers]
        lowest = min(costs)
        best = [worker for worker, price in zip(workers, costs, strict=True) if price <= lowest]
        return best[0] if len(best) == 1 else self.among(request, best)

    def among(self, request: RouteRequest, workers: Sequence[WorkerLoad]) -> WorkerLoad:
        """One of equally good workers."""
        key = request.session.encode(errors="surrogatepass") if request.session else request.key
        if not key:
            self._turn += 1
            ordered = sorted(workers, key=lambda worker: self._weight(b"", worker))
            return ordered[self._turn % len(ordered)]
        return max(workers, key=lambda worker: self._weight(key, worker))

    def _weight(self, key: bytes, worker: WorkerLoad) -> bytes:
        digest = hashlib.blake2b(key, digest_size=8, key=self._salt)
        digest.update(worker.name.encode())
        return digest.digest()
