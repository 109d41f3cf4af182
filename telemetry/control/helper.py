"""The power helper: serves leases on a Unix socket from one thread, and puts everything back when it ends.

The kernel says who a client is; the allow-list says what they may do. A client cannot make the helper wait: every read
and write is non-blocking, lines and connections are bounded, and between any two requests the deadlines are looked at.
A client that breaks the protocol is told so once; one that does not read its replies is cut off.
"""

from __future__ import annotations

import logging
import selectors
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count

from energyopt.core.clock import Clock
from energyopt.core.errors import ConfigError, ControlError
from energyopt.core.units import Seconds

from .access import CONFIG, Access, Peer
from .leases import LeaseBook
from .limits import Limiter
from .protocol import MAX_LINE, Acquire, Adjust, Clear, Release, Renew, Request, Show, encode, failure, parse_request

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 64
MOST_OF_A_USER = 16
IDLE = Seconds(120.0)
"""A connection that holds nothing and says nothing for this long is closed."""


@dataclass(slots=True)
class Client:
    """One connection; ``pending`` is what came after its last whole line."""

    number: int
    socket: socket.socket
    peer: Peer
    heard: Seconds
    pending: bytes = b""
    ended: bool = False


class PowerHelper:
    """Serves until ``stop``; with ``linger`` off also until nobody is connected and nothing is left to put back.

    ``load_access`` is asked at the start and after ``reload``; if it fails then, the list of before stays.
    """

    def __init__(self, limiter: Limiter, load_access: Callable[[], Access], clock: Clock) -> None:
        self._limiter = limiter
        self._book = LeaseBook(limiter, clock)
        self._load_access = load_access
        self._access = load_access()
        self._clock = clock
        self._clients: dict[int, Client] = {}
        self._numbers = count(1)
        self._selector = selectors.DefaultSelector()
        self._told, self._tell = socket.socketpair()
        self._tell.setblocking(False)
        self._orders: set[str] = set()

    def stop(self) -> None:
        """End ``serve``; may be called from a signal handler and from any thread."""
        self._order("stop")

    def reload(self) -> None:
        """Read the allow-list anew; may be called as ``stop`` may."""
        self._order("reload")

    def serve(
        self, *, listener: socket.socket | None = None, connections: Sequence[socket.socket] = (), linger: bool = True
    ) -> None:
        """Put back what a predecessor left, then serve; however this ends, every lease has ended with it."""
        for line in self._limiter.recover():
            log.info("%s", line)
        try:
            self._selector.register(self._told, selectors.EVENT_READ)
            if listener is not None:
                listener.setblocking(False)
                self._selector.register(listener, selectors.EVENT_READ)
            for connection in connections:
                self._admit(connection)
            while "stop" not in self._orders and (linger or self._clients or self._book.busy):
                self._turn(listener)
        finally:
            self._book.close()
            for client in tuple(self._clients.values()):
                client.socket.close()
            self._selector.close()
            self._told.close()
            self._tell.close()

    def _turn(self, listener: socket.socket | None) -> None:
        """Hear whoever speaks, answer one request of each, see to deadlines."""
        unread = any(b"\n" in client.pending for client in self._clients.values())
        ready = [key.fileobj for key, _ in self._selector.select(0.0 if unread else self._book.wait())]
        if listener in ready:
            self._accept(listener)
        if self._told in ready:
            self._obey()
        for client in tuple(self._clients.values()):
            if client.socket in ready:
                self._hear(client)
            self._answer(client)
            self._close_if_over(client)
        self._book.tick()

    def _obey(self) -> None:
        self._told.recv(64)
        if "reload" in self._orders:
            self._orders.discard("reload")
            try:
                self._access = self._load_access()
            except ConfigError as error:
                log.error("The allow-list of before stays: %s", error)

    def _order(self, word: str) -> None:
        self._orders.add(word)
        try:
            self._tell.send(b".")
        except OSError:
            return  # full: it will wake anyway; closed: it has ended

    def _accept(self, listener: socket.socket | None) -> None:
        try:
            connection = listener.accept()[0] if listener is not None else None
        except OSError as error:
            log.warning("A connection could not be accepted: %s", error)
            return
        if connection is not None:
            self._admit(connection)

    def _admit(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        client = Client(next(self._numbers), connection, Peer.of(connection), self._clock.now())
        same = sum(other.peer.uid == client.peer.uid for other in self._clients.values())
        refused = None
        if not self._access.knows(client.peer):
            refused = f"{client.peer.user} may not change power limits here: no entry of {CONFIG} names them."
        elif len(self._clients) >= MOST_CONNECTIONS or (same >= MOST_OF_A_USER and client.peer.uid != 0):
            refused = "The power helper has too many connections; try again later."
        if refused is not None:
            self._send(client, failure(ControlError(refused)))
            connection.close()
            return
        self._clients[client.number] = client
        self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, client: Client) -> None:
        room = MAX_LINE + 1 - len(client.pending)
        if room <= 0:
            return  # its lines are answered first
        try:
            data = client.socket.recv(room)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        client.ended = client.ended or not data
        client.pending += data
        client.heard = self._clock.now()

    def _answer(self, client: Client) -> None:
        """One request, so that no client can keep the others waiting by sending many."""
        line, end, rest = client.pending.partition(b"\n")
        if not end:
            if len(line) > MAX_LINE:
                self._send(client, failure(ControlError(f"A request may have {MAX_LINE} bytes at most.")))
                client.ended = True
            return
        client.pending = rest
        if client.ended and not rest and not line.strip():
            return
        try:
            reply = self._reply(client, parse_request(line))
        except ControlError as error:
            reply = failure(error)
        self._send(client, reply)

    def _reply(self, client: Client, request: Request) -> Mapping[str, object]:
        peer, book = client.peer, self._book
        match request:
            case Acquire():
                connection = None if request.kept else client.number
                lease = book.acquire(peer, self._access, request.devices, request.power, request.lifetime, connection)
            case Adjust():
                lease = book.adjust(peer, self._access, request.lease, request.power)
            case Renew():
                lease = book.renew(peer, request.lease)
            case Release():
                return {"ok": True, "said": book.release(peer, request.lease)}
            case Clear():
                return {"ok": True, "said": book.clear(peer, request.devices)}
            case Show():
                return {"ok": True, "leases": book.documents(), "devices": self._devices(peer, request.devices)}
        return {"ok": True, "lease": lease.document(self._clock.now())}

    def _devices(self, peer: Peer, devices: Sequence[str]) -> dict[str, object]:
        return {device: self._device(peer, device) for device in devices}

    def _device(self, peer: Peer, device: str) -> dict[str, object]:
        allowed, reason = self._limiter.can_cap(device)
        if not allowed:
            return {"allowed": False, "reason": reason, "limits": None}
        try:
            self._access.check_device(peer, device)
            limits = asdict(self._limiter.backend.limits(device))
        except ControlError as error:
            return {"allowed": False, "reason": str(error), "limits": None}
        return {"allowed": True, "reason": reason, "limits": limits}

    def _send(self, client: Client, reply: Mapping[str, object]) -> None:
        data = encode(reply)
        try:
            client.ended = client.socket.send(data) != len(data) or client.ended
        except OSError:
            client.ended = True

    def _close_if_over(self, client: Client) -> None:
        quiet = self._clock.now() - client.heard > IDLE and not self._book.holds(client.number)
        if quiet or (client.ended and b"\n" not in client.pending):
            self._selector.unregister(client.socket)
            client.socket.close()
            del self._clients[client.number]
            self._book.connection_closed(client.number)
