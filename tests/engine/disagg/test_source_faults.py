"""Peers that are slow, die, or send what they do not have; an address that is taken."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from energyopt.core.errors import ConfigError
from engine.disagg.client import WireSource, by_tcp
from engine.disagg.errors import Reason
from engine.disagg.params import Offer
from engine.disagg.ports import CHUNK, KvSource
from engine.disagg.server import tcp_listener
from engine.kv.checksum import checksum
from tests.engine.disagg.expect import Make, fails


class Trickling:
    """A peer that greets well and then sends a byte now and then, or a block with a flipped bit, or half a block."""

    def __init__(self, side: Any, relay: Callable[[bytes], bytes | None], delay: float = 0.0) -> None:
        self.listener = tcp_listener("127.0.0.1", 0)
        self.port = self.listener.getsockname()[1]
        self._side, self._relay, self._delay = side, relay, delay
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = self._side.raw()
            threading.Thread(target=self._pump, args=(near, far, lambda data: data, 0.0), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, self._relay, self._delay), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, relay: Any, delay: float) -> None:
        try:
            while data := source.recv(65536):
                changed = relay(data)
                if changed is None:
                    break
                for at in range(0, len(changed), 8 if delay else len(changed) or 1):
                    sink.sendall(changed[at : at + 8] if delay else changed)
                    time.sleep(delay)
        except OSError:
            pass
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def through(side: Any, peer: Trickling, **options: Any) -> tuple[KvSource, Offer]:
    return WireSource(by_tcp("127.0.0.1", peer.port), side.mover.block_bytes, side.clock, **options), side.offer()


def test_a_slow_peer_is_given_up_in_time(lending: Make) -> None:
    side = lending("tcp")
    peer = Trickling(side, lambda data: data, delay=0.02)
    source, offer = through(side, peer, answer=0.5)
    start = time.monotonic()
    with fails(Reason.TIMEOUT):
        source.fetch(side.ask(offer, *((0, index) for index in range(CHUNK))))
    assert time.monotonic() - start < 3
    source.close()
    peer.listener.close()


def test_a_flipped_bit_is_found_by_the_checksum(lending: Make) -> None:
    side = lending("tcp")
    peer = Trickling(side, lambda data: data[:-1] + bytes([data[-1] ^ 1]) if len(data) >= 96 else data)
    source, offer = through(side, peer)
    pieces = source.fetch(side.ask(offer, (0, 1)))
    assert [checksum(piece.view) == piece.checksum for piece in pieces] == [False]
    source.close()
    peer.listener.close()


def test_a_peer_that_dies_in_the_middle_is_told_from_a_slow_one(lending: Make) -> None:
    side = lending("tcp")
    peer = Trickling(side, lambda data: None if len(data) >= 96 else data)
    source, offer = through(side, peer)
    start = time.monotonic()
    with fails(Reason.UNREACHABLE):
        source.fetch(side.ask(offer, (0, 1)))
    assert time.monotonic() - start < 3
    source.close()
    peer.listener.close()


def test_an_address_in_use_is_an_error_of_the_start(lending: Make) -> None:
    side = lending("tcp")
    with pytest.raises(ConfigError, match=f"port {side.port}"):
        tcp_listener("127.0.0.1", side.port)
