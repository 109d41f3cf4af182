"""Frames between two engines: small, bounded, and without anything that is executed or unpickled.

A frame is a header (magic, kind, length) and at most ``LONGEST`` bytes; the bytes of blocks follow a ``BLOCKS`` frame
outside it, and their number was agreed before. Whoever talks proves first that it knows the shared secret, which may
be empty. Nothing is encrypted: use a network of your own, or a tunnel.

::

    server                               client
    HELLO   nonce                 ->
                                  <-     PROVE   nonce, mac            SHARE size (with a descriptor; same host only)
    WELCOME mac                   ->
                                  <-     FETCH lease, digest, layout, blocks     RENEW lease     RELEASE lease
    BLOCKS  checksums [, bytes]   ->     OK, or ERROR reason, message
                                  <-     REGISTER: OK has a ticket, and no bytes follow BLOCKS, but TAKEN answers it
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NoReturn

from energyopt.core.clock import Clock

from .errors import HandOverError, Reason
from .ports import CHUNK

LONGEST = 1 << 12
"""Bytes of a frame, the largest being a FETCH."""

NONCE_BYTES, MAC_BYTES, ID_BYTES = 16, 32, 16
_HEADER = struct.Struct("<4sBxxxI")
_MAGIC = b"eoK1"
_BLOCK = struct.Struct("<BI")
_FETCH = struct.Struct(f"<{ID_BYTES}s{ID_BYTES}sBB")
_BLOCKS = struct.Struct("<HI")
_REASONS = tuple(Reason)


class Kind(IntEnum):
    """What a frame says."""

    HELLO = 1
    PROVE = 2
    WELCOME = 3
    SHARE = 4
    FETCH = 5
    RENEW = 6
    RELEASE = 7
    OK = 8
    BLOCKS = 9
    ERROR = 10
    REGISTER = 11
    TAKEN = 12


class Channel:
    """One connection. ``limit`` sets how long, in all, whatever follows may take.

    Every method raises HandOverError: TIMEOUT, UNREACHABLE when the peer is gone, PROTOCOL for nonsense.
    """

    def __init__(self, connection: socket.socket, clock: Clock) -> None:
        self._socket = connection
        self._clock = clock
        self._deadline = 0.0

    def limit(self, seconds: float) -> None:
        self._deadline = self._clock.now() + seconds

    def send(self, kind: Kind, payload: bytes = b"", *, descriptor: int | None = None) -> None:
        data = _HEADER.pack(_MAGIC, kind, len(payload)) + payload
        try:
            self._patience()
            if descriptor is None:
                self._socket.sendall(data)
            elif socket.send_fds(self._socket, [data], [descriptor]) != len(data):
                raise HandOverError(Reason.UNREACHABLE, "A descriptor could not be sent whole.")
        except OSError as error:
            _gone(error)

    def send_bytes(self, views: Sequence[memoryview]) -> None:
        """Blocks, after the frame that announces them."""
        try:
            for view in views:
                self._patience()
                self._socket.sendall(view)
        except OSError as error:
            _gone(error)

    def receive(self, *allowed: Kind) -> tuple[Kind, bytes]:
        """The next frame; an ERROR is raised as what it says, if it was not expected."""
        kind, size = self._head(self._exactly(_HEADER.size))
        return self._checked(kind, self._exactly(size), allowed)

    def receive_shared(self, *allowed: Kind) -> tuple[Kind, bytes, int | None]:
        """As ``receive``, with a descriptor if one came along."""
        try:
            self._patience()
            data, descriptors, _, _ = socket.recv_fds(self._socket, _HEADER.size, 1)
        except OSError as error:
            _gone(error)
        descriptor = descriptors[0] if descriptors else None
        try:
            if not data:
                raise HandOverError(Reason.UNREACHABLE, "The peer closed the connection.")
            kind, size = self._head(data + self._exactly(_HEADER.size - len(data)))
            kind, payload = self._checked(kind, self._exactly(size), allowed)
        except BaseException:
            if descriptor is not None:
                os.close(descriptor)
            raise
        return kind, payload, descriptor

    def receive_into(self, view: memoryview) -> None:
        """Exactly as many bytes as ``view`` has."""
        try:
            while view:
                self._patience()
                count = self._socket.recv_into(view)
                if not count:
                    raise HandOverError(Reason.UNREACHABLE, "The peer closed the connection.")
                view = view[count:]
        except OSError as error:
            _gone(error)

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, size: int) -> bytes:
        data = bytearray(size)
        self.receive_into(memoryview(data))
        return bytes(data)

    def _head(self, data: bytes) -> tuple[Kind, int]:
        magic, kind, size = _HEADER.unpack(data)
        if magic != _MAGIC or kind not in Kind.__members__.values() or size > LONGEST:
            raise HandOverError(Reason.PROTOCOL, "What came is not a frame of this protocol.")
        return Kind(kind), size

    def _checked(self, kind: Kind, payload: bytes, allowed: Sequence[Kind]) -> tuple[Kind, bytes]:
        if kind in allowed:
            return kind, payload
        if kind is Kind.ERROR:
            raise read_error(payload)
        raise HandOverError(Reason.PROTOCOL, f"{kind.name} came, where {allowed[0].name} was expected.")

    def _patience(self) -> None:
        left = self._deadline - self._clock.now()
        if left <= 0:
            raise HandOverError(Reason.TIMEOUT, "The peer was too slow.")
        self._socket.settimeout(left)


def proof(secret: bytes, who: bytes, server: bytes, client: bytes) -> bytes:
    """What shows that ``who`` ("server" or "client") knows the secret, in this conversation only."""
    return hmac.new(secret, who + server + client, hashlib.sha256).digest()


def write_fetch(lease: str, digest: bytes, layout: str, blocks: Sequence[tuple[int, int]]) -> bytes:
    name = layout.encode()[:255]
    head = _FETCH.pack(bytes.fromhex(lease), digest, len(name), len(blocks))
    return head + name + b"".join(_BLOCK.pack(group, index) for group, index in blocks)


def read_fetch(payload: bytes) -> tuple[str, bytes, str, list[tuple[int, int]]]:
    """Lease, digest, layout and blocks. Raises HandOverError (PROTOCOL)."""
    try:
        lease, digest, length, count = _FETCH.unpack_from(payload)
        at = _FETCH.size + length
        layout = payload[_FETCH.size : at].decode()
        if count > CHUNK or len(payload) != at + count * _BLOCK.size:
            raise HandOverError(Reason.PROTOCOL, "A question for blocks has the wrong length.")
        blocks = [_BLOCK.unpack_from(payload, at + number * _BLOCK.size) for number in range(count)]
    except (struct.error, UnicodeDecodeError) as error:
        raise HandOverError(Reason.PROTOCOL, f"A question for blocks cannot be read: {error}.") from error
    return lease.hex(), digest, layout, [(group, index) for group, index in blocks]


def write_blocks(sums: Sequence[int], block_bytes: int) -> bytes:
    return _BLOCKS.pack(len(sums), block_bytes) + struct.pack(f"<{len(sums)}Q", *sums)


def read_blocks(payload: bytes, count: int, block_bytes: int) -> Sequence[int]:
    """Checksums of the ``count`` blocks asked for. Raises HandOverError (PROTOCOL)."""
    if len(payload) != _BLOCKS.size + 8 * count or _BLOCKS.unpack_from(payload) != (count, block_bytes):
        raise HandOverError(Reason.PROTOCOL, "Other blocks came than were asked for.")
    return struct.unpack_from(f"<{count}Q", payload, _BLOCKS.size)


def write_error(error: HandOverError) -> bytes:
    return bytes((_REASONS.index(error.reason),)) + str(error).encode()[:500]


def read_error(payload: bytes) -> HandOverError:
    """What the peer complains about, in its words as far as they can be printed."""
    if not payload or payload[0] >= len(_REASONS):
        return HandOverError(Reason.PROTOCOL, "The peer reports an error that is none of this protocol.")
    words = "".join(letter for letter in payload[1:].decode(errors="replace") if letter.isprintable())
    return HandOverError(_REASONS[payload[0]], f"The peer says: {words}")


def _gone(error: OSError) -> NoReturn:
    if isinstance(error, TimeoutError):
        raise HandOverError(Reason.TIMEOUT, "The peer was too slow.") from error
    raise HandOverError(Reason.UNREACHABLE, f"The peer cannot be reached: {error}.") from error
