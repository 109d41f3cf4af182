"""Engines that hand over to each other without threads or wires, slow and failing on demand. For tests.

Content moves when a pull *ends*, so whoever reuses a block before that is found out by what is in it.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

from ..kv.ports import TierCounts
from ..request import NO_BLOCK
from .errors import HandOverError, Reason
from .params import Offer
from .ports import NOTHING_PULLED, REMOTE, Part, Pulled

Content = Sequence[int | None]
_RUBBISH = (-1,) * 64
LAYOUT = "fake"


@dataclass(slots=True)
class _Lease:
    owner: FakeRemote
    tables: tuple[tuple[int, ...], ...]
    digest: bytes


class FakeWorld:
    """The leases of several engines."""

    def __init__(self) -> None:
        self.leases: dict[str, _Lease] = {}
        self.made = 0

    def end(self, lease: str) -> None:
        """A lease ends, by release or expiry; its owner learns of it at its next look."""
        if (ended := self.leases.pop(lease, None)) is not None:
            ended.owner.ended.append(lease)

    def expire_all(self) -> None:
        for lease in tuple(self.leases):
            self.end(lease)


class FakeRemote:
    """Satisfies ``Remote``.

    ``delays`` are polls that pulls take, ``failures`` says of each in turn whether it fails, after having written
    rubbish to one of its blocks.
    """

    def __init__(
        self,
        world: FakeWorld,
        *,
        read: Callable[[int], Content],
        write: Callable[[int, Content], None],
        delays: Iterator[int] | None = None,
        failures: Iterator[bool] | None = None,
        recompute: bool = True,
    ) -> None:
        self.recompute = recompute
        self.ended: list[str] = []
        self.held: set[str] = set()
        self.pulled = self.lent = 0
        self.closed = False
        self._world = world
        self._read, self._write = read, write
        self._delays = delays if delays is not None else repeat(0)
        self._failures = failures if failures is not None else repeat(False)
        self._due: dict[int, tuple[int, Offer, bytes, Sequence[Part]]] = {}
        self._polls = self._tickets = 0

    @property
    def busy(self) -> bool:
        return bool(self._due) or any(lease.owner is self for lease in self._world.leases.values())

    def usable(self, offer: Offer) -> str | None:
        return None if offer.layout == LAYOUT else f"its KV layout {offer.layout!r} is not {LAYOUT!r} as here"

    def hold(self, offer: Offer) -> None:
        self.held.add(offer.lease)

    def drop(self, offer: Offer) -> None:
        self.held.discard(offer.lease)
        self._world.end(offer.lease)

    def pull(self, offer: Offer, digest: bytes, parts: Sequence[Part]) -> int:
        self._tickets += 1
        self._due[self._tickets] = (self._polls + 1 + next(self._delays, 0), offer, digest, parts)
        return self._tickets

    def cancel(self, ticket: int) -> None:
        """It ends by itself."""

    def poll(self) -> Pulled:
        self._polls += 1
        ended = [ticket for ticket, (due, *_) in self._due.items() if due <= self._polls]
        if not ended:
            return NOTHING_PULLED
        results = [(ticket, self._move(*self._due.pop(ticket)[1:])) for ticket in ended]
        return Pulled(
            tuple(ticket for ticket, why in results if not why), tuple((ticket, why) for ticket, why in results if why)
        )

    def lend(self, tables: tuple[tuple[int, ...], ...], num_tokens: int, digest: bytes) -> Offer:
        self._world.made += 1
        self.lent += 1
        name = f"{self._world.made:032x}"
        self._world.leases[name] = _Lease(self, tables, digest)
        return Offer("0" * 32, name, "127.0.0.1", 1, LAYOUT, num_tokens, tables)

    def returned(self) -> Sequence[str]:
        ended, self.ended = self.ended, []
        return ended

    def wait(self, seconds: float) -> None:
        """There is never anything to wait for."""

    def counts(self) -> TierCounts:
        return TierCounts(REMOTE, loads=self.pulled, stores=self.lent)

    def close(self) -> None:
        self.closed = True

    def _move(self, offer: Offer, digest: bytes, parts: Sequence[Part]) -> str:
        """Why a pull failed, or "" and its blocks are filled."""
        lease, fails = self._world.leases.get(offer.lease), next(self._failures, False)
        if fails and parts:
            self._write(parts[0].slot, _RUBBISH)
        if lease is None or fails:
            return "gone" if lease is None else "corrupt"
        if lease.digest != digest:
            return "prompt"
        for part in parts:
            source = lease.tables[part.group][part.index]
            assert source != NO_BLOCK, "a block was asked for that the lease does not have"
            self._write(part.slot, lease.owner._read(source))
        self.pulled += len(parts)
        return ""


class FakeAgent:
    """Memory of agents in one process. Satisfies ``MemoryAgent``. Bytes move only once the other end asks for progress,
    and not at all from memory that was withdrawn."""

    def __init__(self, world: dict[bytes, tuple[FakeAgent, memoryview]]) -> None:
        self._world = world
        self._own: dict[int, bytes] = {}
        self._asked = threading.Event()

    def register(self, memory: memoryview) -> bytes:
        ticket = secrets.token_bytes(8)
        self._own[id(memory.obj)] = ticket
        self._world[ticket] = self, memory
        return ticket

    def withdraw(self, memory: memoryview) -> None:
        self._world.pop(self._own.pop(id(memory.obj), b""), None)

    def read(self, ticket: bytes, into: Sequence[memoryview], patience: float) -> None:
        if not all(id(view.obj) in self._own for view in into):
            raise HandOverError(Reason.PROTOCOL, "The memory to be filled is not registered.")
        if ticket not in self._world:
            raise HandOverError(Reason.UNREACHABLE, "The peer's memory cannot be read any more.")
        lender, memory = self._world[ticket]
        lender._asked.clear()
        if not lender._asked.wait(patience):
            raise HandOverError(Reason.TIMEOUT, "The peer's memory was not read in time.")
        at = 0
        for view in into:
            view[:] = memory[at : at + len(view)]
            at += len(view)

    def forget(self, ticket: bytes) -> None:
        """Nothing is kept of a peer."""

    def progress(self) -> None:
        self._asked.set()
