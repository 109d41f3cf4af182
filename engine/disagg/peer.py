"""One other engine, as the decode side deals with it: a thread that fetches blocks, and one for short messages.

Apart, because a heartbeat must not wait behind a fetch, nor one peer's blocks behind another's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ..kv.lane import LOAD, STORE, Job, Lane
from .errors import HandOverError, Reason
from .params import Offer
from .ports import KvSource

logger = logging.getLogger(__name__)


class Peer:
    """``connect`` makes a source; it is not called before the peer is needed."""

    def __init__(self, name: str, connect: Callable[[], KvSource]) -> None:
        self._name = name
        self._connect = connect
        self._source: KvSource | None = None
        self._control: KvSource | None = None
        self._fetches = Lane(f"kv-fetch-{name[:8]}")
        self._messages = Lane(f"kv-lease-{name[:8]}")
        self._round: tuple[Offer, ...] = ()

    @property
    def source(self) -> KvSource:
        """For jobs of ``fetch``. Raises HandOverError."""
        if self._source is None:
            self._source = self._connect()
        return self._source

    def fetch(self, job: Job) -> bool:
        """Run a job on the thread that fetches; False, and it will not run, after ``close``."""
        return self._fetches.submit(job, LOAD)

    def renew(self, offers: tuple[Offer, ...]) -> None:
        """Heartbeats for these leases, unless the last ones are still under way."""
        if not self._round:
            self._round = offers
            if not self._messages.submit(self._renew, STORE):
                self._round = ()

    def release(self, offer: Offer) -> None:
        """Tell the peer that it may reuse the blocks; at best, for else the lease runs out."""

        def release() -> None:
            self._tell("release", lambda: self._talk().release(offer))

        self._messages.submit(release, LOAD)

    def end(self) -> None:
        """Let both threads end after what is queued, with their connections; ``close`` waits for it."""
        for lane, last in ((self._fetches, self._close_source), (self._messages, self._close_control)):
            lane.submit(last, STORE)
            lane.close(0.0)

    def close(self, timeout: float) -> None:
        """``end``, and wait for it so many seconds."""
        self.end()
        until = time.monotonic() + timeout
        for lane in (self._fetches, self._messages):
            if not lane.close(max(0.0, until - time.monotonic())):
                logger.warning("KV transfers with engine %s did not come to an end within %g s.", self._name, timeout)

    def _renew(self) -> None:
        try:
            for offer in self._round:
                if not self._tell("heartbeat", lambda offer=offer: self._talk().renew(offer)):  # type: ignore[misc]
                    break
        finally:
            self._round = ()

    def _talk(self) -> KvSource:
        if self._control is None:
            self._control = self._connect()
        return self._control

    def _tell(self, what: str, message: Callable[[], None]) -> bool:
        """False if the peer cannot be reached, so that the rest of a round need not wait for it too."""
        try:
            message()
        except HandOverError as error:
            # A lease that is gone shows when it is fetched; a peer that is down may come back.
            logger.debug("A %s to engine %s failed: %s", what, self._name, error)
            return error.reason is Reason.GONE
        return True

    def _close_source(self) -> None:
        if self._source is not None:
            self._source.close()

    def _close_control(self) -> None:
        if self._control is not None:
            self._control.close()
