"""Serves lent blocks to other engines over sockets: TCP, or a Unix socket whose blocks go through shared memory.

One thread accepts, one serves each connection. Nothing that comes is trusted: frames are bounded, every wait has an
end, there are at most ``MOST_CONNECTIONS`` (further ones wait to be accepted), and an error ends its connection only.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import secrets
import select
import socket
import struct
import threading
import time

from energyopt.core.clock import Clock
from energyopt.core.errors import ConfigError, EngineError

from .errors import HandOverError, Reason
from .lender import Lender
from .ports import MemoryAgent
from .region import Region
from .wire import (
    ID_BYTES,
    MAC_BYTES,
    NONCE_BYTES,
    Channel,
    Kind,
    proof,
    read_fetch,
    write_blocks,
    write_error,
)

logger = logging.getLogger(__name__)

MOST_CONNECTIONS = 128
GREETING, ANSWER, IDLE = 5.0, 30.0, 120.0
"""Seconds for the greeting, for an answer to be taken, and between questions."""

BREATH = 0.05
"""Seconds before the next attempt after a connection could not be taken."""

PACE = 2e-4
"""Seconds between two looks at what a peer reads from this process's memory."""

_CREDENTIALS = struct.Struct("3i")


def tcp_listener(host: str, port: int) -> socket.socket:
    """Raises ConfigError when the address is taken or none of this machine's."""
    try:
        return socket.create_server((host, port), backlog=64)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"KV blocks cannot be lent at {host}, port {port}: {error}.") from error


def shared_name(engine: str) -> str:
    """The abstract Unix address of an engine on this host: it has no file and is gone with its process."""
    return f"\0energyopt-kv-{engine}"


def shared_listener(engine: str) -> socket.socket:
    """Raises ConfigError where the system has no such addresses."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(shared_name(engine))
        listener.listen(64)
    except OSError as error:
        listener.close()
        raise ConfigError(f"KV blocks cannot be lent through shared memory here: {error}.") from error
    return listener


def same_user(connection: socket.socket) -> bool:
    """Whether the process at the other end of a Unix socket is this user's."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(raw)[1] == os.geteuid())


class BlockServer:
    """Lends through ``listener``, which it owns, until it is closed."""

    def __init__(
        self,
        lender: Lender,
        listener: socket.socket,
        clock: Clock,
        *,
        secret: bytes = b"",
        agent: MemoryAgent | None = None,
    ) -> None:
        """``agent``: peers may read blocks from this process's memory instead of having them sent."""
        self._lender = lender
        self._agent = agent
        self._listener = listener
        self._clock = clock
        self._secret = secret
        self._places = threading.Semaphore(MOST_CONNECTIONS)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closed = False
        self._thread = threading.Thread(target=self._accept, name="kv-lend", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The TCP port; 0 for shared memory."""
        name = self._listener.getsockname()
        return int(name[1]) if isinstance(name, tuple) else 0

    def close(self) -> None:
        """End every connection; idempotent."""
        with self._lock:
            self._closed = True
            connections = list(self._open)
        for connection in (self._listener, *connections):
            with contextlib.suppress(OSError):  # it is down already
                connection.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._places.release()  # for the thread, should it wait for one: ``_closed`` ends it
        self._thread.join(1.0)  # it holds the address as long as it runs

    def _accept(self) -> None:
        while True:
            self._places.acquire()
            connection = self._next()
            with self._lock:
                closed = self._closed
                if connection is not None and not closed:
                    self._open.add(connection)
            if closed:
                if connection is not None:
                    connection.close()
                return
            if connection is None or not self._begin(connection):
                self._places.release()
                time.sleep(BREATH)

    def _next(self) -> socket.socket | None:
        """Who comes next; None if the listener is closed, or if the system is short of something for a moment."""
        try:
            return self._listener.accept()[0]
        except OSError as error:
            if not self._closed:
                logger.warning("A connection for KV blocks could not be taken: %s.", error)
            return None

    def _begin(self, connection: socket.socket) -> bool:
        """Serve a connection on a thread of its own; False if there is none to be had."""
        try:
            threading.Thread(target=self._serve, args=(connection,), name="kv-lend-one", daemon=True).start()
        except RuntimeError as error:  # what threading raises when the system gives no thread
            logger.warning("A connection for KV blocks could not be served: %s.", error)
            with self._lock:
                self._open.discard(connection)
            connection.close()
            return False
        return True

    def _serve(self, connection: socket.socket) -> None:
        channel, region = Channel(connection, self._clock), Region(self._lender.block_bytes)
        try:
            channel.limit(GREETING)
            self._greet(connection, channel)
            while True:
                self._answer(connection, channel, region)
        except HandOverError as error:
            if error.reason is not Reason.UNREACHABLE:
                logger.debug("A connection for KV blocks ends: %s", error)
        except EngineError as error:  # of what reads the blocks: a rank that is gone, and the engine soon with it
            logger.warning("KV blocks could not be lent: %s", error)
        finally:
            region.close()
            channel.close()
            with self._lock:
                self._open.discard(connection)
            self._places.release()

    def _greet(self, connection: socket.socket, channel: Channel) -> None:
        if connection.family == socket.AF_UNIX and not same_user(connection):
            raise HandOverError(Reason.REFUSED, "Another user's process asked for KV blocks.")
        nonce = secrets.token_bytes(NONCE_BYTES)
        channel.send(Kind.HELLO, nonce)
        _, answer = channel.receive(Kind.PROVE)
        theirs, mac = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
        if len(mac) != MAC_BYTES or not hmac.compare_digest(mac, proof(self._secret, b"client", nonce, theirs)):
            refusal = HandOverError(Reason.REFUSED, "The shared secret is not the one that is used here.")
            channel.send(Kind.ERROR, write_error(refusal))
            raise refusal
        channel.send(Kind.WELCOME, proof(self._secret, b"server", nonce, theirs))

    def _answer(self, connection: socket.socket, channel: Channel, region: Region) -> None:
        """One question. What is wrong with a lease is answered; what is wrong with a frame ends the connection."""
        channel.limit(IDLE)
        wanted = (Kind.FETCH, Kind.RENEW, Kind.RELEASE, Kind.SHARE, Kind.REGISTER)
        ticket = b""
        descriptor = None
        if connection.family == socket.AF_UNIX:
            kind, payload, descriptor = channel.receive_shared(*wanted)
        else:
            kind, payload = channel.receive(*wanted)
        channel.limit(ANSWER)
        try:
            if kind is Kind.SHARE:
                taken, descriptor = descriptor, None
                region.share(taken)
            elif kind is Kind.REGISTER:
                ticket = region.register(self._agent)
            elif kind is Kind.FETCH:
                self._lend(connection, channel, region, payload)
                return
            else:
                lease = _lease(payload)
                book = self._lender.book
                (book.renew if kind is Kind.RENEW else book.release)(lease)
            channel.send(Kind.OK, ticket)
        except HandOverError as error:
            if error.reason not in (Reason.GONE, Reason.LAYOUT, Reason.PROMPT):
                raise
            channel.send(Kind.ERROR, write_error(error))
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _lend(self, connection: socket.socket, channel: Channel, region: Region, payload: bytes) -> None:
        lease, digest, layout, blocks = read_fetch(payload)
        views = region.views[: len(blocks)]
        sums = self._lender.read(lease, layout, digest, blocks, views)
        channel.send(Kind.BLOCKS, write_blocks(sums, self._lender.block_bytes))
        if region.agent is not None:
            until = self._clock.now() + ANSWER
            while self._clock.now() < until and not select.select((connection,), (), (), PACE)[0]:
                region.agent.progress()
            channel.receive(Kind.TAKEN)
        elif not region.shared:
            channel.send_bytes(views)


def _lease(payload: bytes) -> str:
    if len(payload) != ID_BYTES:
        raise HandOverError(Reason.PROTOCOL, "A lease's name has the wrong length.")
    return payload.hex()
