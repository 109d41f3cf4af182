"""The borders of a hand-over: what the coordinator asks of the other engines, and the ways that blocks travel.

``Remote`` is called by the thread of the step loop and never waits. A ``KvSource`` is one way to one peer; it blocks,
and one thread uses it at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..kv.ports import TierCounts
from .params import Offer

REMOTE = "remote"
"""The tier's name for blocks that another engine computed."""

CHUNK = 32
"""Blocks that are asked for at once: they bound the memory of a hand-over."""


@dataclass(frozen=True, slots=True)
class Part:
    """Block ``index`` of ``group`` in the table of a prompt, and the slot of the device pool that it fills."""

    group: int
    index: int
    slot: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Up to ``CHUNK`` blocks of a lease. ``digest`` is of the prompt they must have been computed for."""

    offer: Offer
    layout: str
    digest: bytes
    blocks: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """One block as it arrived, not yet verified; the view is valid until the source is asked again."""

    view: memoryview
    checksum: int


class KvSource(Protocol):
    """Blocks of a peer's leases. Every method raises HandOverError; after one that did, the next call starts anew.

    Blocks until a deadline of its own.
    """

    def fetch(self, ask: Ask) -> Sequence[Piece]:
        """One piece for each block asked for, in their order."""
        ...

    def renew(self, offer: Offer) -> None:
        """The decode side lives and still wants the blocks. GONE if there is no such lease."""
        ...

    def release(self, offer: Offer) -> None:
        """The blocks are not needed any more; no error if the lease has ended."""
        ...

    def close(self) -> None:
        """Idempotent, never raises."""
        ...


class MemoryAgent(Protocol):
    """Memory that other processes read without this one sending it. Any thread. Methods raise HandOverError."""

    def register(self, memory: memoryview) -> bytes:
        """Take part with ``memory`` until ``withdraw``; a ticket with which a peer may read it."""
        ...

    def withdraw(self, memory: memoryview) -> None:
        """The memory is used for other things; no error if it was not registered."""
        ...

    def read(self, ticket: bytes, into: Sequence[memoryview], patience: float) -> None:
        """Fill parts of registered memory from the beginning of a peer's. After TIMEOUT they may be written yet."""
        ...

    def forget(self, ticket: bytes) -> None:
        """The peer's memory is not read any more."""
        ...

    def progress(self) -> None:
        """Let what peers read go on: some ways need both ends."""
        ...


@dataclass(frozen=True, slots=True)
class Pulled:
    """What ended since the last ``poll``: tickets whose blocks all arrived whole, and others with why not."""

    arrived: tuple[int, ...] = ()
    failed: tuple[tuple[int, str], ...] = ()


NOTHING_PULLED = Pulled()


class Remote(Protocol):
    """The other engines, as the coordinator sees them. Called by one thread; no method waits for a peer."""

    @property
    def recompute(self) -> bool:
        """The policy for blocks that did not come: compute them; or else end the request."""
        ...

    @property
    def busy(self) -> bool:
        """Whether a pull runs or blocks are lent."""
        ...

    def usable(self, offer: Offer) -> str | None:
        """Why this offer cannot be used here, or None. Asks nobody."""
        ...

    def hold(self, offer: Offer) -> None:
        """Keep the lease alive until ``drop``."""
        ...

    def drop(self, offer: Offer) -> None:
        """The lease is not needed any more: the peer may reuse its blocks."""
        ...

    def pull(self, offer: Offer, digest: bytes, parts: Sequence[Part]) -> int:
        """Begin to fill slots; a ticket. The slots belong to the copy until ``poll`` names it."""
        ...

    def cancel(self, ticket: int) -> None:
        """Nobody waits for a pull any more; it still ends in ``poll``."""
        ...

    def poll(self) -> Pulled: ...

    def lend(self, tables: tuple[tuple[int, ...], ...], num_tokens: int, digest: bytes) -> Offer:
        """Offer blocks, which must stay untouched until ``returned`` names the lease."""
        ...

    def returned(self) -> Sequence[str]:
        """Leases that ended since the last call: fetched, dropped or expired."""
        ...

    def wait(self, seconds: float) -> None:
        """Sleep until ``poll`` has news, at most ``seconds``."""
        ...

    def counts(self) -> TierCounts:
        """Blocks pulled (loads) and lent (stores). Any thread."""
        ...

    def close(self) -> None:
        """End threads, connections and leases. Idempotent."""
        ...
