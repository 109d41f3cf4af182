"""Fetches blocks from another engine over a socket, by TCP or through shared memory. Satisfies ``ports.KvSource``."""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import mmap
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence

from energyopt.core.clock import Clock

from .errors import HandOverError, Reason
from .params import Offer
from .ports import CHUNK, Ask, MemoryAgent, Piece
from .region import cut
from .server import same_user, shared_name
from .wire import MAC_BYTES, NONCE_BYTES, Channel, Kind, proof, read_blocks, write_fetch

CONNECT, ANSWER = 2.0, 10.0
"""Seconds for a connection with its greeting, and for the answer to one question."""

Open = Callable[[float], socket.socket]


def by_tcp(host: str, port: int) -> Open:
    """A connection to a peer by address."""

    def connect(timeout: float) -> socket.socket:
        connection = socket.create_connection((host, port), timeout=timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    return connect


def by_shared_memory(engine: str) -> Open:
    """A connection to an engine of this host and user."""

    def connect(timeout: float) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout)
            connection.connect(shared_name(engine))
            if not same_user(connection):
                raise ConnectionRefusedError("another user's process answers for this engine")
        except OSError:
            connection.close()
            raise
        return connection

    return connect


class WireSource:
    """One connection, made when it is needed and made anew after an error.

    A question whose connection had been idle and turns out to be dead is asked once more: the peer may have hung up
    meanwhile. ``answer`` bounds the seconds that one question takes.
    """

    def __init__(
        self,
        connect: Open,
        block_bytes: int,
        clock: Clock,
        *,
        secret: bytes = b"",
        answer: float = ANSWER,
        allocate: Callable[[int], memoryview] | None = None,
        agent: MemoryAgent | None = None,
    ) -> None:
        self._connect = connect
        self._block_bytes = block_bytes
        self._clock = clock
        self._secret = secret
        self._limit = answer
        self._allocate = allocate or (lambda size: memoryview(bytearray(size)))
        self._channel: Channel | None = None
        self._views: list[memoryview] = []
        self._shared = False
        self._agent = agent
        self._ticket = b""
        self._memory: memoryview | None = None

    def fetch(self, ask: Ask) -> Sequence[Piece]:
        payload = write_fetch(ask.offer.lease, ask.digest, ask.layout, ask.blocks)
        channel, answer = self._ask(Kind.FETCH, payload, Kind.BLOCKS)
        with self._ended_by_error():
            sums = read_blocks(answer, len(ask.blocks), self._block_bytes)
            if not self._shared and not self._views:
                self._views = self._landing()
            views = self._views[: len(ask.blocks)]
            if self._agent is not None:
                self._agent.read(self._ticket, views, self._limit)
                channel.send(Kind.TAKEN)
            elif not self._shared:
                for view in views:
                    channel.receive_into(view)
        return [Piece(view, value) for view, value in zip(views, sums, strict=True)]

    def renew(self, offer: Offer) -> None:
        self._ask(Kind.RENEW, bytes.fromhex(offer.lease), Kind.OK)

    def release(self, offer: Offer) -> None:
        self._ask(Kind.RELEASE, bytes.fromhex(offer.lease), Kind.OK)

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._agent is not None:
            ticket, self._ticket = self._ticket, b""
            memory, self._memory = self._memory, None
            with contextlib.suppress(HandOverError):  # a peer that is gone cannot be left in order
                if memory is not None:
                    self._views = []
                    self._agent.withdraw(memory)
                if ticket:
                    self._agent.forget(ticket)

    def _landing(self) -> list[memoryview]:
        """Memory for a chunk, which an agent must know."""
        memory = self._allocate(CHUNK * self._block_bytes)
        if self._agent is not None:
            self._agent.register(memory)
            self._memory = memory
        return cut(memory, self._block_bytes)

    def _ask(self, kind: Kind, payload: bytes, wanted: Kind) -> tuple[Channel, bytes]:
        reused = self._channel is not None
        try:
            return self._ask_once(kind, payload, wanted)
        except HandOverError as error:
            if not (reused and error.reason is Reason.UNREACHABLE):
                raise
        return self._ask_once(kind, payload, wanted)

    def _ask_once(self, kind: Kind, payload: bytes, wanted: Kind) -> tuple[Channel, bytes]:
        channel = self._channel or self._greeted()
        channel.limit(self._limit)
        with self._ended_by_error():
            if kind is Kind.FETCH and self._agent is not None and not self._ticket:
                channel.send(Kind.REGISTER)
                self._ticket = channel.receive(Kind.OK)[1]
            channel.send(kind, payload)
            return channel, channel.receive(wanted)[1]

    @contextlib.contextmanager
    def _ended_by_error(self) -> Iterator[None]:
        """What is left in a connection after an error answers a question that nobody asks any more."""
        try:
            yield
        except HandOverError as error:
            if error.reason not in (Reason.GONE, Reason.LAYOUT, Reason.PROMPT):
                self.close()
            raise

    def _greeted(self) -> Channel:
        """A connection on which both sides have proved that they know the secret."""
        try:
            connection = self._connect(CONNECT)
        except OSError as error:
            reason = Reason.TIMEOUT if isinstance(error, TimeoutError) else Reason.UNREACHABLE
            raise HandOverError(reason, f"The engine that lent these blocks cannot be reached: {error}.") from error
        channel = Channel(connection, self._clock)
        channel.limit(CONNECT)
        try:
            _, theirs = channel.receive(Kind.HELLO)
            nonce = secrets.token_bytes(NONCE_BYTES)
            channel.send(Kind.PROVE, nonce + proof(self._secret, b"client", theirs, nonce))
            _, mac = channel.receive(Kind.WELCOME)
            if len(mac) != MAC_BYTES or not hmac.compare_digest(mac, proof(self._secret, b"server", theirs, nonce)):
                raise HandOverError(Reason.REFUSED, "The peer does not know the shared secret.")
            if connection.family == socket.AF_UNIX:
                self._share(channel)
        except HandOverError:
            channel.close()
            raise
        self._channel = channel
        return channel

    def _share(self, channel: Channel) -> None:
        """Give the peer memory to put blocks into. The region is this connection's: a peer that hung up keeps none."""
        size = CHUNK * self._block_bytes
        descriptor = os.memfd_create("energyopt-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            memory = mmap.mmap(descriptor, size)
            channel.send(Kind.SHARE, descriptor=descriptor)
            channel.receive(Kind.OK)
        finally:
            os.close(descriptor)
        self._views, self._shared = cut(memoryview(memory), self._block_bytes), True
