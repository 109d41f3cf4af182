"""A lender whose machine or engine is short of something: it goes on once that is over."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Any

import pytest

from energyopt.core.errors import EngineError
from engine.disagg.errors import HandOverError
from engine.disagg.server import BlockServer, tcp_listener

Make = Callable[..., Any]


def third_byte(side: Any) -> int:
    """The byte of which the third lent block consists, as it comes to a new client."""
    (piece,) = side.source().fetch(side.ask(side.offer(), (0, 3)))
    return int(piece.view[0])


class Short:
    """A listener of a system that has no descriptors left, for the first three connections."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.refused = 0

    def accept(self) -> tuple[socket.socket, object]:
        if self.refused < 3:
            self.refused += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._listener.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listener, name)


def test_a_moment_without_descriptors_does_not_end_the_lending(lending: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.disagg.server.BREATH", 0.001)
    side = lending("tcp")
    side.stop()
    listener = Short(tcp_listener("127.0.0.1", 0))
    side.server = BlockServer(side.lender, listener, side.clock)  # type: ignore[arg-type]
    side.port = side.server.port
    assert third_byte(side) == 3
    assert listener.refused == 3


def test_blocks_that_cannot_be_read_end_the_connection_and_nothing_else(lending: Make) -> None:
    side = lending("tcp")
    read = side.mover.read

    def broken(*_: Any) -> None:
        raise EngineError("Another rank is gone.")

    side.mover.read = broken
    with pytest.raises(HandOverError, match="closed the connection"):
        third_byte(side)
    side.mover.read = read
    assert third_byte(side) == 3
