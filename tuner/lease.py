"""The right to work on a study: claimed, kept alive while a trial blocks, given back at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from energyopt.core.clock import Clock
from energyopt.core.errors import NotFoundError, StoreError
from energyopt.core.study_store import StudyStore
from energyopt.core.units import Seconds

DEFAULT_TTL = Seconds(30.0)


class LeaseLostError(StoreError):
    """Someone else owns the study now; nothing of it may be written any more."""


class Lease:
    """A ``with`` block in which ``owner`` owns the study.

    A killed owner's lease outlives it by up to ``ttl``, so entering waits that long for another lease to end, telling
    ``on_wait`` how long; a living owner renews, and then entering raises StoreError. ``owner`` must be unique among
    all processes that use the database.
    """

    def __init__(
        self,
        store: StudyStore,
        clock: Clock,
        study_id: str,
        owner: str,
        *,
        ttl: Seconds = DEFAULT_TTL,
        on_wait: Callable[[Seconds], None] = lambda seconds: None,
    ) -> None:
        self._store, self._clock, self._study_id, self.owner = store, clock, study_id, owner
        self._ttl, self._on_wait = ttl, on_wait
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"lease of {study_id}", daemon=True)

    def __enter__(self) -> Lease:
        self._claim_or_wait()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        try:
            self._store.release(self._study_id, self.owner)
        except (StoreError, NotFoundError) as refused:
            if error is None:
                raise
            error.add_note(f"The lease of the study was not released either: {refused}")

    def confirm(self) -> None:
        """Prolong the lease and be sure to hold it. Raises LeaseLostError; call before every write."""
        try:
            self._store.claim(self._study_id, self.owner, self._ttl)
        except StoreError as refused:
            if self._store.study(self._study_id).owner == self.owner:
                raise
            raise LeaseLostError(f"Another process took over study {self._study_id}.") from refused

    def _claim_or_wait(self) -> None:
        try:
            self._store.claim(self._study_id, self.owner, self._ttl)
        except StoreError:
            left = self._foreign_lease()
            if left is None or left > self._ttl:
                raise
            self._on_wait(left)
            self._clock.sleep(Seconds(left + 0.1))
            self._store.claim(self._study_id, self.owner, self._ttl)

    def _foreign_lease(self) -> Seconds | None:
        """How long another owner's lease still lasts; None if none is in the way."""
        study = self._store.study(self._study_id)
        if study.owner in (None, self.owner) or study.lease_until is None:
            return None
        return Seconds(max(0.0, (study.lease_until - self._clock.utc()).total_seconds()))

    def _keep(self) -> None:
        """Renew in the background. A refusal is not fatal here: ``confirm`` finds out before anything is written."""
        while not self._stop.wait(self._ttl / 3):
            try:
                self._store.claim(self._study_id, self.owner, self._ttl)
            except (StoreError, NotFoundError):
                continue
