"""The border between the coordinator and everything below the device pool: tiers, stores and the movers of bytes.

A *key* names the content of one block of one group of layers: the chained block hash, followed by the group's index
for every group but the first. Keys are equal in every process that runs the same model with the same layout. A *slot*
is a block id of the device pool. The coordinator decides what is wanted; tiers decide where it is; a mover copies it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from .events import EventLog


class Transfer(NamedTuple):
    """One block to copy between a device slot and a tier."""

    key: bytes
    slot: int


@dataclass(frozen=True, slots=True)
class Found:
    """What the tiers know of a sequence of keys.

    ``tiers`` names, for the longest known prefix of the keys, the tier each block would come from ("host", "disk",
    "shared"). ``later`` says that a store has not answered yet: ask again in the next step instead of computing.
    """

    tiers: tuple[str, ...] = ()
    later: bool = False


@dataclass(frozen=True, slots=True)
class TierEvents:
    """What ended since the last ``poll``.

    ``loaded`` are tickets whose blocks all arrived, whole and verified. ``failed`` are tickets of which at least one
    block did not: none of its slots may be used. ``stored`` are tickets of stores that ended, well or not: their slots
    may be reused.
    """

    loaded: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    stored: tuple[int, ...] = ()


NOTHING = TierEvents()


@dataclass(frozen=True, slots=True)
class TierCounts:
    """Counters of one tier since start, for metrics; bytes and seconds of copies, failed ones included."""

    tier: str
    hits: int = 0
    loads: int = 0
    stores: int = 0
    load_bytes: int = 0
    store_bytes: int = 0
    load_seconds: float = 0.0
    store_seconds: float = 0.0
    evictions: int = 0
    failures: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadRecord:
    """One load from its beginning to its end, waiting in queues included. ``blocks`` by tier; ``good``: all arrived."""

    start: float
    end: float
    blocks: Mapping[str, int]
    size: int
    good: bool


class LowerTiers(Protocol):
    """Everything below the device pool, as the coordinator sees it.

    No method blocks on a copy or on I/O. All are called by the thread of the step loop. A ticket is unique for the
    life of the object; after ``load`` or ``store`` the slots belong to the copy until ``poll`` names the ticket.
    """

    def seen(self, keys: Sequence[bytes]) -> None:
        """A request arrived whose whole blocks have these keys. Call it once a request and group of layers, also for
        device hits.

        Tiers that admit a block only after several sightings count these calls; ``find`` is asked too often for that.
        """
        ...

    def find(self, keys: Sequence[bytes], *, weigh: bool) -> Found:
        """The longest prefix of ``keys`` that could be loaded, by tier. Changes nothing but recency.

        ``weigh``: no more of it than is worth its load, where these keys are all that is loaded.
        """
        ...

    def locate(self, keys: Sequence[bytes]) -> Found:
        """Like ``find``, but answers for every key: one entry each, "" where no tier has it.

        Layers that read a window or a single state need a few blocks from the middle of a prefix, whatever lies
        before them. Entries may come from different tiers; one ``load`` may mix them.
        """
        ...

    def worth(self, tiers: Sequence[str], tokens: int) -> bool:
        """Whether loading one block from each of ``tiers`` is better than computing the ``tokens`` that they save.

        ``find`` weighs where every layer reads everything; where windows and states lie between, only the blocks of
        all groups together save anything, and they are weighed here. The answer may differ from call to call.
        """
        ...

    def load(self, transfers: Sequence[Transfer]) -> int | None:
        """Begin to fill device slots; a ticket, or None where something vanished since ``find`` (then nothing began).

        The source blocks are pinned until the ticket ends.
        """
        ...

    def store(self, transfers: Sequence[Transfer]) -> int | None:
        """Offer full device blocks; a ticket, or None where nothing is wanted (known already, or not worth it)."""
        ...

    def poll(self) -> TierEvents:
        """What ended since the last call; ``NOTHING`` most of the time."""
        ...

    def wait(self, seconds: float) -> None:
        """Sleep until ``poll`` or ``find`` has news, at most ``seconds``: for a loop that has nothing else to do."""
        ...

    def watch(self, log: EventLog | None) -> None:
        """Note in ``log`` the blocks of tiers that are this engine's alone, and their fate; None ends that."""
        ...

    def reset(self, tier: str | None = None) -> int:
        """Forget every block of one tier, or of all; returns how many. Running copies end or are dropped first."""
        ...

    def counts(self) -> tuple[TierCounts, ...]:
        """Counters of every tier, the fastest first. Any thread."""
        ...

    def close(self) -> None:
        """End threads and connections, and publish what a restart can use. Idempotent."""
        ...


class BlockMover(Protocol):
    """Copies whole blocks between the device's KV tensors and plain bytes. Lives with the runner; knows the layout."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers of all groups that it serves."""
        ...

    @property
    def layout(self) -> str:
        """A digest of model, dtype, shapes and block size: blocks of another layout must never be loaded."""
        ...

    def allocate(self, size: int) -> memoryview:
        """Host memory of ``size`` bytes for copies, pinned where the device profits. Raises OutOfMemoryError."""
        ...

    def read(self, slots: Sequence[int], into: Sequence[memoryview]) -> None:
        """Copy device blocks into buffers of ``block_bytes`` each. Called from a transfer thread."""
        ...

    def write(self, slots: Sequence[int], source: Sequence[memoryview]) -> None:
        """Copy buffers into device blocks. Called from a transfer thread, for slots that no step uses."""
        ...
