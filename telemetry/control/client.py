"""The other end of the helper's socket: sends one request, waits for its reply, raises what it says."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from energyopt.core.errors import ControlError
from energyopt.core.units import Seconds

from .access import Peer
from .protocol import MAX_REPLY, Request, encode

SOCKET = Path("/run/energyopt/power.sock")
PATIENCE = Seconds(30.0)
"""A reply may take this long: a driver call can take half a second, and several devices are set in turn."""


class HelperGoneError(ControlError):
    """The helper does not answer: it has ended, or was never there."""


class Channel(Protocol):
    """Something that answers requests as the power helper does."""

    def call(self, request: Request) -> Mapping[str, Any]: ...

    def close(self) -> None: ...


Connect = Callable[[], Channel]


class Connection:
    """One connection to a helper. Closing it ends the leases that are not kept. Safe for several threads."""

    def __init__(self, connected: socket.socket, *, patience: Seconds = PATIENCE) -> None:
        self._socket = connected
        self._socket.settimeout(patience)
        self._pending = b""
        self._lock = threading.Lock()

    @property
    def server(self) -> int:
        """The process id of the helper."""
        return Peer.of(self._socket).pid

    @classmethod
    def to(cls, path: Path) -> Connection:
        """Connect to the helper that listens at ``path``. Raises HelperGoneError if none does."""
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.settimeout(PATIENCE)
            connected.connect(str(path))
        except OSError as error:
            connected.close()
            raise HelperGoneError(f"No power helper listens at {path}: {error}.") from error
        return cls(connected)

    def call(self, request: Request) -> Mapping[str, Any]:
        """The reply. Raises ControlError with the helper's sentence, HelperGoneError where none comes."""
        with self._lock:
            try:
                self._socket.sendall(encode(request))
                reply = json.loads(self._line())
            except OSError as error:
                self._socket.close()  # a reply that comes late must not be taken for the next one's
                raise HelperGoneError(f"The power helper does not answer: {error}.") from error
            except (ValueError, RecursionError) as error:
                self._socket.close()
                raise HelperGoneError(f"The power helper answers in no known form: {error}.") from error
        if not isinstance(reply, dict) or not isinstance(reply.get("ok"), bool):
            raise HelperGoneError("The power helper answers in no known form.")
        if not reply["ok"]:
            raise ControlError(str(reply.get("error", "The power helper refused without a reason.")))
        return reply

    def close(self) -> None:
        self._socket.close()

    def _line(self) -> bytes:
        while b"\n" not in self._pending:
            data = self._socket.recv(65_536)
            if not data:
                raise ConnectionError("it closed the connection")
            self._pending += data
            if len(self._pending) > MAX_REPLY:
                raise ValueError(f"a reply of more than {MAX_REPLY} bytes")
        line, _, self._pending = self._pending.partition(b"\n")
        return line
