"""Fixtures of the hand-over tests: a lender over plain bytes, reachable by every transport."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from energyopt.core.clock import MonotonicClock
from engine.disagg.client import WireSource, by_shared_memory, by_tcp
from engine.disagg.fake import FakeAgent
from engine.disagg.leases import LeaseBook
from engine.disagg.lender import Lender
from engine.disagg.local import LocalSource
from engine.disagg.nixl import NixlAgent
from engine.disagg.params import Offer
from engine.disagg.ports import Ask, KvSource, MemoryAgent
from engine.disagg.server import BlockServer, shared_listener, tcp_listener
from engine.kv.tier_counter import TierCounter

BLOCK_BYTES, SLOTS, ENGINE = 96, 80, "e" * 32
DIGEST = bytes(range(16))


class ByteMover:
    """A device of blocks that are plain bytes. ``gate`` holds copies up."""

    layout = "bytes-1"
    block_bytes = BLOCK_BYTES

    def __init__(self) -> None:
        self.device = [bytearray([slot]) * BLOCK_BYTES for slot in range(SLOTS)]
        self.gate = threading.Event()
        self.gate.set()

    def allocate(self, size: int) -> memoryview:
        return memoryview(bytearray(size))

    def read(self, slots: Sequence[int], into: Sequence[memoryview]) -> None:
        assert self.gate.wait(10)
        for slot, view in zip(slots, into, strict=True):
            view[:] = self.device[slot]

    def write(self, slots: Sequence[int], source: Sequence[memoryview]) -> None:
        for slot, view in zip(slots, source, strict=True):
            self.device[slot][:] = view


class Lending:
    """The prefill side of a contract test, and ways to it."""

    def __init__(self, kind: str, *, secret: bytes = b"", seconds: float = 30.0) -> None:
        self.kind = kind
        self.secret = secret
        self.clock = MonotonicClock()
        self.mover = ByteMover()
        self.counter = TierCounter("remote")
        self.book = LeaseBook(self.clock, seconds=seconds)
        self.lender = Lender(self.book, self.mover, self.counter, self.clock)
        self.server: BlockServer | None = None
        self.port = 0
        self._sources: list[KvSource] = []
        world: dict[bytes, tuple[FakeAgent, memoryview]] = {}
        self.agents: tuple[MemoryAgent | None, MemoryAgent | None] = (None, None)
        if kind == "read":
            self.agents = FakeAgent(world), FakeAgent(world)
        elif kind == "nixl":
            self.agents = NixlAgent(f"{secrets.token_hex(4)}-lends"), NixlAgent(f"{secrets.token_hex(4)}-takes")
        self.start()

    def start(self) -> None:
        """Begin to serve, after a stop at the same address."""
        if self.kind != "local":
            listener = shared_listener(ENGINE) if self.kind == "shm" else tcp_listener("127.0.0.1", self.port)
            self.server = BlockServer(self.lender, listener, self.clock, secret=self.secret, agent=self.agents[0])
            self.port = self.server.port

    def stop(self) -> None:
        if self.server is not None:
            self.server.close()

    def source(self, *, secret: bytes | None = None, answer: float = 10.0, block_bytes: int = BLOCK_BYTES) -> KvSource:
        if self.kind == "local":
            made: KvSource = LocalSource(self.lender)
        else:
            way = by_shared_memory(ENGINE) if self.kind == "shm" else by_tcp("127.0.0.1", self.port)
            made = WireSource(
                way,
                block_bytes,
                self.clock,
                secret=self.secret if secret is None else secret,
                answer=answer,
                agent=self.agents[1],
            )
        self._sources.append(made)
        return made

    def offer(self, slots: Sequence[int] = range(40), *others: Sequence[int]) -> Offer:
        tables = (tuple(slots), *map(tuple, others))
        lease = self.book.lend(tables, len(slots) * 4, DIGEST)
        return Offer(ENGINE, lease.id, "127.0.0.1", self.port, self.mover.layout, len(slots) * 4, tables)

    def ask(self, offer: Offer, *blocks: tuple[int, int], digest: bytes = DIGEST, layout: str = "bytes-1") -> Ask:
        return Ask(offer, layout, digest, blocks)

    def close(self) -> None:
        self.mover.gate.set()
        for source in self._sources:
            source.close()
        self.stop()

    def raw(self) -> socket.socket:
        """A bare connection, for whoever wants to send nonsense."""
        return (by_shared_memory(ENGINE) if self.kind == "shm" else by_tcp("127.0.0.1", self.port))(2.0)


@pytest.fixture
def lending() -> Iterator[Callable[..., Lending]]:
    made: list[Lending] = []

    def make(kind: str, **options: object) -> Lending:
        made.append(Lending(kind, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()
