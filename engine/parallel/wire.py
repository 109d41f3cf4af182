"""Frames between the engine and its ranks: a kind, a length, bytes. JSON for settings and errors, arrays for steps.

Nothing is unpickled, and nothing longer than ``MAX_BYTES`` is read.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from energyopt.core import errors
from energyopt.core.errors import EnergyoptError, EngineError

MAX_BYTES = 1 << 28
_HEAD = struct.Struct("<II")


class Kind(IntEnum):
    """What a frame says. From the engine: SETUP to CLOSE; from a rank: READY, RESULT, ERROR."""

    SETUP = 1
    POOL = 2
    STEP = 3
    READ = 4
    WRITE = 5
    CLOSE = 6
    READY = 7
    RESULT = 8
    ERROR = 9


def send(channel: socket.socket, kind: Kind, body: bytes = b"") -> None:
    """Raises EngineError if the other end is gone."""
    try:
        channel.sendall(_HEAD.pack(kind, len(body)) + body)
    except OSError as error:
        raise EngineError(f"A rank is gone: {error.strerror or error}.") from error


def receive(channel: socket.socket) -> tuple[Kind, bytes]:
    """The next frame; blocks. Raises EngineError at the end of the stream and for what is no frame."""
    kind, size = _HEAD.unpack(_exactly(channel, _HEAD.size))
    if kind not in Kind._value2member_map_ or size > MAX_BYTES:
        raise EngineError(f"A frame of kind {kind} with {size} bytes is not allowed: at most {MAX_BYTES}.")
    return Kind(kind), _exactly(channel, size)


def _exactly(channel: socket.socket, size: int) -> bytes:
    buffer = bytearray(size)
    view, filled = memoryview(buffer), 0
    while filled < size:
        try:
            count = channel.recv_into(view[filled:])
        except OSError as error:
            raise EngineError(f"A rank is gone: {error.strerror or error}.") from error
        if not count:
            raise EngineError("A rank is gone: its end of the connection is closed.")
        filled += count
    return bytes(buffer)


def pack(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode()


def unpack(body: bytes) -> dict[str, Any]:
    """Raises EngineError for what is no JSON object."""
    with contextlib.suppress(ValueError):
        data = json.loads(body)
        if isinstance(data, dict):
            return data
    raise EngineError("A rank sent settings that are no JSON object.")


def pack_error(error: BaseException) -> bytes:
    """A foreign error travels as EngineError, named."""
    if isinstance(error, EnergyoptError):
        return pack({"kind": type(error).__name__, "message": error.message})
    return pack({"kind": EngineError.__name__, "message": f"{type(error).__name__}: {error}"})


def unpack_error(body: bytes, where: str) -> EnergyoptError:
    """The error of a rank, of the same kind where the project knows that kind, with the rank's name before it."""
    data = unpack(body)
    kind = getattr(errors, str(data.get("kind")), None)
    known = isinstance(kind, type) and issubclass(kind, EnergyoptError) and kind.__init__ is Exception.__init__
    message = f"{where}: {data.get('message', 'unknown error')}"
    return kind(message) if known and kind is not None else EngineError(message)
