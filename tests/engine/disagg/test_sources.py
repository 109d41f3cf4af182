"""One contract for every way that blocks travel, and what a peer may do to it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import struct
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.disagg.errors import HandOverError, Reason
from engine.disagg.ports import CHUNK
from engine.disagg.wire import Channel, Kind
from tests.engine.disagg.expect import Make, contents, fails

NIXL = pytest.param(
    "nixl", marks=pytest.mark.skipif(importlib.util.find_spec("nixl") is None, reason="the nixl package is optional")
)
KINDS = ["local", "tcp", "shm", "read", NIXL]
WIRES = ["tcp", "shm", "read", NIXL]


@pytest.mark.parametrize("kind", KINDS)
def test_the_blocks_of_a_lease_come_as_they_are(lending: Make, kind: str) -> None:
    side = lending(kind)
    source, offer = side.source(), side.offer(range(40), (-1, 70, 71))
    assert contents(source.fetch(side.ask(offer, (0, 3), (1, 2), (0, 0)))) == [3, 71, 0]
    many = [(0, index) for index in range(CHUNK)]
    assert contents(source.fetch(side.ask(offer, *many))) == list(range(CHUNK))
    side.mover.device[3][:] = b"x" * len(side.mover.device[3])
    assert contents(source.fetch(side.ask(offer, (0, 3)))) == [ord("x")], "nothing is remembered from before"
    assert side.counter.snapshot().stores == 3 + CHUNK + 1


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_part_of_the_lease_is_refused(lending: Make, kind: str) -> None:
    side = lending(kind)
    offer = side.offer(range(4), (-1, 70))
    for blocks in ([(0, 4)], [(1, 0)], [(2, 0)], [(0, 0)] * (CHUNK + 1)):
        with pytest.raises(HandOverError) as error:
            side.source().fetch(side.ask(offer, *blocks))
        assert error.value.reason in (Reason.PROTOCOL, Reason.UNREACHABLE)
    source = side.source()
    with fails(Reason.LAYOUT):
        source.fetch(side.ask(offer, (0, 0), layout="bytes-2"))
    with fails(Reason.PROMPT):
        source.fetch(side.ask(offer, (0, 0), digest=bytes(16)))
    with fails(Reason.GONE):
        source.fetch(side.ask(replace(offer, lease="0" * 32), (0, 0)))
    assert contents(source.fetch(side.ask(offer, (0, 1)))) == [1], "the connection survives a refusal"


@pytest.mark.parametrize("kind", KINDS)
def test_a_lease_lives_by_heartbeats_and_ends_by_release(lending: Make, kind: str) -> None:
    side = lending(kind, seconds=0.3)
    source, kept, left = side.source(), side.offer(), side.offer()
    deadline = time.monotonic() + 0.6
    while time.monotonic() < deadline:
        source.renew(kept)
        time.sleep(0.05)
    assert [lease.id for lease in side.book.returned()] == [left.lease]
    with fails(Reason.GONE):
        source.renew(left)
    source.release(kept)
    source.release(kept)  # a replay is no error
    with fails(Reason.GONE):
        source.fetch(side.ask(kept, (0, 0)))
    assert [lease.id for lease in side.book.returned()] == [kept.lease]
    assert len(side.book) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_stay_while_they_are_read(lending: Make, kind: str) -> None:
    side = lending(kind)
    offer, source = side.offer(), side.source()
    side.mover.gate.clear()
    reader = threading.Thread(target=lambda: source.fetch(side.ask(offer, (0, 0))))
    reader.start()
    while not any(lease.readers for lease in side.book._leases.values()):
        time.sleep(0.001)
    side.book.release(offer.lease)
    assert side.book.returned() == []
    side.mover.gate.set()
    reader.join(5)
    deadline = time.monotonic() + 5
    while not side.book.returned():
        assert time.monotonic() < deadline


@pytest.mark.parametrize("kind", KINDS)
def test_two_peers_at_once_get_their_own_blocks(lending: Make, kind: str) -> None:
    side = lending(kind)
    failures: list[object] = []

    def fetch(first: int) -> None:
        source, offer = side.source(), side.offer(range(first, first + 20))
        for _ in range(20):
            found = contents(source.fetch(side.ask(offer, *((0, index) for index in range(20)))))
            if found != list(range(first, first + 20)):
                failures.append(found)

    threads = [threading.Thread(target=fetch, args=(first,)) for first in (0, 20, 40, 60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not failures


@pytest.mark.parametrize("kind", WIRES)
def test_a_peer_that_restarts_is_found_again_and_has_forgotten(lending: Make, kind: str) -> None:
    side = lending(kind)
    source, offer = side.source(), side.offer()
    source.fetch(side.ask(offer, (0, 0)))
    side.stop()
    with fails(Reason.UNREACHABLE):
        source.fetch(side.ask(offer, (0, 0)))
    for lease in side.book._leases.values():
        lease.over = True
    side.start()
    with fails(Reason.GONE):
        source.fetch(side.ask(offer, (0, 0)))
    assert contents(source.fetch(side.ask(side.offer((7,)), (0, 0)))) == [7]


@pytest.mark.parametrize("kind", WIRES)
def test_a_connection_that_was_dropped_while_idle_is_made_anew(lending: Make, kind: str) -> None:
    side = lending(kind)
    source, offer = side.source(), side.offer()
    source.fetch(side.ask(offer, (0, 0)))
    for connection in tuple(side.server._open):
        connection.shutdown(socket.SHUT_RDWR)
    assert contents(source.fetch(side.ask(offer, (0, 5)))) == [5]


@pytest.mark.parametrize("kind", WIRES)
def test_who_does_not_know_the_secret_gets_nothing(lending: Make, kind: str) -> None:
    side = lending(kind, secret=b"open sesame")
    offer = side.offer()
    for wrong in (b"", b"guess"):
        with fails(Reason.REFUSED):
            side.source(secret=wrong).fetch(side.ask(offer, (0, 0)))
    assert contents(side.source().fetch(side.ask(offer, (0, 1)))) == [1]


@pytest.mark.parametrize("kind", WIRES)
def test_a_peer_with_blocks_of_another_size_is_refused(lending: Make, kind: str) -> None:
    side = lending(kind)
    with pytest.raises(HandOverError) as error:
        side.source(block_bytes=64).fetch(side.ask(side.offer(), (0, 0)))
    assert error.value.reason in (Reason.PROTOCOL, Reason.LAYOUT, Reason.UNREACHABLE)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.one_of(st.binary(max_size=200), st.binary(max_size=60).map(lambda end: b"eoK1" + end)))
def test_nonsense_ends_its_connection_and_nothing_else(nonsense_side: Any, data: bytes) -> None:
    with nonsense_side.raw() as connection, contextlib.suppress(OSError):  # it hangs up, at any point
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(5)
        while connection.recv(4096):
            pass
    assert contents(nonsense_side.source().fetch(nonsense_side.ask(nonsense_side.offer(), (0, 2)))) == [2]


@pytest.fixture(params=WIRES)
def nonsense_side(lending: Make, request: pytest.FixtureRequest) -> Any:
    return lending(request.param)


def test_a_length_that_lies_is_refused_before_it_is_read(lending: Make) -> None:
    side = lending("tcp")
    with side.raw() as connection:
        connection.sendall(struct.pack("<4sBxxxI", b"eoK1", Kind.PROVE, 1 << 31))
        connection.settimeout(5)
        received = b""
        while piece := connection.recv(4096):
            received += piece
    assert len(received) < 200


def test_memory_that_could_shrink_is_not_written_to(lending: Make) -> None:
    side = lending("shm")
    source = side.source()
    source.renew(side.offer())
    channel = Channel(side.raw(), side.clock)
    channel.limit(5)
    _, nonce = channel.receive(Kind.HELLO)
    own = bytes(16)
    from engine.disagg.wire import proof

    channel.send(Kind.PROVE, own + proof(b"", b"client", nonce, own))
    channel.receive(Kind.WELCOME)
    descriptor = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, CHUNK * side.mover.block_bytes)
    channel.send(Kind.SHARE, descriptor=descriptor)
    with fails(Reason.LAYOUT):
        channel.receive(Kind.OK)
    os.close(descriptor)
    channel.close()
