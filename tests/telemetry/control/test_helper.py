"""The helper on its socket: what it serves, and what it survives."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from energyopt.core.clock import MonotonicClock
from energyopt.core.errors import ConfigError, ControlError
from energyopt.core.units import Hertz, Seconds, Watts
from telemetry.control.access import Access, Allowance, Peer
from telemetry.control.client import Connection, HelperGoneError
from telemetry.control.fake import FakeLimits
from telemetry.control.helper import MOST_CONNECTIONS, PowerHelper
from telemetry.control.journal import Journal
from telemetry.control.limits import Limiter
from telemetry.control.protocol import (
    MAX_LINE,
    Acquire,
    Adjust,
    Clear,
    Release,
    Renew,
    Request,
    Show,
    encode,
    parse_request,
)

Connect = Callable[[], Connection]
HELD = Acquire(devices=("GPU-1",), cap=Watts(400.0), lifetime=Seconds(30.0))


@pytest.fixture
def raw(helper_socket: Path) -> Iterator[socket.socket]:
    """A client that says what it likes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(10.0)
        client.connect(str(helper_socket))
        yield client


def answer(client: socket.socket) -> dict[str, Any]:
    """One reply; ``{}`` where the helper closed the connection instead."""
    data = b""
    while not data.endswith(b"\n"):
        got = client.recv(65_536)
        if not got:
            return {}
        data += got
    found: dict[str, Any] = json.loads(data)
    return found


def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


class TestServes:
    def test_every_kind_of_request(self, connect: Connect, driver: FakeLimits, journal: Journal) -> None:
        channel = connect()
        lease = channel.call(HELD)["lease"]
        assert (lease["pid"], lease["cap"], lease["kept"]) == (os.getpid(), 400.0, False)
        assert 29.0 < lease["remaining"] <= 30.0
        channel.call(Adjust(lease=lease["id"], cap=Watts(300.0), sm_clock=Hertz(1e9)))
        assert (driver.devices["GPU-1"].requested, driver.devices["GPU-1"].clock) == (300.0, 1e9)
        channel.call(Renew(lease=lease["id"]))
        shown = channel.call(Show(devices=("GPU-1", "GPU-9")))
        assert shown["leases"][0]["id"] == lease["id"]
        assert shown["devices"]["GPU-1"]["limits"]["requested"] == 300.0
        assert shown["devices"]["GPU-9"]["allowed"] is False
        assert "not a device" in shown["devices"]["GPU-9"]["reason"]
        assert channel.call(Release(lease=lease["id"]))["said"] == ["GPU-1: the limit is 500 W again."]
        assert channel.call(Clear(devices=("GPU-1",)))["said"] == []
        channel.close()
        assert journal.entries() == ()

    def test_a_closed_connection_ends_its_lease_and_only_its_own(self, connect: Connect, driver: FakeLimits) -> None:
        first, second = connect(), connect()
        first.call(HELD)
        second.call(Acquire(devices=("GPU-2",), cap=Watts(300.0), lifetime=Seconds(30.0)))
        first.close()
        until(lambda: driver.devices["GPU-1"].requested == 500.0)
        assert driver.devices["GPU-2"].requested == 300.0
        second.close()
        until(lambda: driver.devices["GPU-2"].requested == 500.0)

    def test_a_silent_holder_has_its_limits_for_one_lifetime(self, connect: Connect, driver: FakeLimits) -> None:
        channel = connect()
        began = time.monotonic()
        channel.call(Acquire(devices=("GPU-1",), cap=Watts(400.0), lifetime=Seconds(0.2)))
        until(lambda: driver.devices["GPU-1"].requested == 500.0)
        assert 0.15 < time.monotonic() - began < 2.0
        channel.close()

    def test_the_kernel_says_who_speaks(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            assert Peer.of(ours) == Peer(os.getpid(), os.geteuid())


class TestSurvives:
    @pytest.mark.parametrize(
        "line",
        [
            b"\n",
            b"null\n",
            b"[]\n",
            b"\xff\xfe\x00\n",
            b'{"op": "acquire"}\n',
            b'{"op": "sudo", "devices": ["GPU-1"]}\n',
            b'{"op": "show", "devices": "GPU-1"}\n',
            b'{"op": "show", "extra": 1}\n',
            b'{"op": "acquire", "devices": ["../../etc"], "cap": 300, "lifetime": 1}\n',
            b'{"op": "acquire", "devices": [], "cap": 300, "lifetime": 1}\n',
            b'{"op": "acquire", "devices": ["GPU-1"], "cap": -1, "lifetime": 1}\n',
            b'{"op": "acquire", "devices": ["GPU-1"], "cap": NaN, "lifetime": 1}\n',
            b'{"op": "acquire", "devices": ["GPU-1"], "cap": 1e400, "lifetime": 1}\n',
            b'{"op": "acquire", "devices": ["GPU-1"], "cap": 300, "lifetime": Infinity}\n',
            b'{"op": "acquire", "devices": ["GPU-1"], "cap": 300, "lifetime": 1e9}\n',
            b'{"op": "release", "lease": "../x"}\n',
            b"[" * 4000 + b"\n",
            b'{"op": "renew", "lease": ' + b"9" * 4000 + b"}\n",
        ],
    )
    def test_what_is_no_request_is_refused_and_the_connection_lives(
        self, raw: socket.socket, driver: FakeLimits, line: bytes
    ) -> None:
        raw.sendall(line)
        refused = answer(raw)
        assert refused["ok"] is False
        assert refused["error"]
        raw.sendall(encode(HELD))
        assert answer(raw)["ok"] is True
        assert driver.devices["GPU-1"].requested == 400.0

    def test_a_line_without_end_is_cut_off(self, raw: socket.socket) -> None:
        raw.sendall(b"x" * (MAX_LINE + 1))
        assert "bytes at most" in answer(raw)["error"]
        assert answer(raw) == {}

    def test_a_line_in_pieces_is_one_line(self, raw: socket.socket) -> None:
        for byte in encode(Show()):
            raw.sendall(bytes([byte]))
        assert answer(raw)["ok"] is True

    def test_a_request_followed_by_an_end_is_still_undone(self, helper_socket: Path, driver: FakeLimits) -> None:
        for _ in range(5):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                client.connect(str(helper_socket))
                client.sendall(encode(HELD) + encode(HELD))
        until(lambda: len(driver.calls) >= 10)
        until(lambda: driver.devices["GPU-1"].requested == 500.0)

    def test_a_client_that_resets_its_connection(self, helper_socket: Path, driver: FakeLimits) -> None:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.connect(str(helper_socket))
        client.sendall(encode(HELD))
        until(lambda: driver.devices["GPU-1"].requested == 400.0)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        until(lambda: driver.devices["GPU-1"].requested == 500.0)
        assert _works(helper_socket)

    def test_a_client_that_never_reads_is_cut_off_and_delays_nobody(
        self, raw: socket.socket, connect: Connect, driver: FakeLimits
    ) -> None:
        flood = encode(Show(devices=tuple(f"GPU-{number}" for number in range(64)))) * 20
        raw.setblocking(False)
        other, slowest, sent = connect(), 0.0, 0
        try:
            while sent < 2_000_000:
                sent += raw.send(flood)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            pass
        for _ in range(20):
            began = time.monotonic()
            other.call(Show())
            slowest = max(slowest, time.monotonic() - began)
        assert slowest < 1.0
        other.close()

    def test_more_connections_than_it_takes(self, helper_socket: Path) -> None:
        clients = []
        try:
            for _ in range(MOST_CONNECTIONS):
                client = Connection.to(helper_socket)
                clients.append(client)
                client.call(Show())
            one_more = Connection.to(helper_socket)
            with pytest.raises(ControlError, match=r"too many connections|closed the connection"):
                one_more.call(Show())
            one_more.close()
        finally:
            for client in clients:
                client.close()
        until(lambda: _works(helper_socket))

    @settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    @given(noise=st.lists(st.binary(max_size=300) | st.sampled_from([b"\n", encode(Show()), encode(HELD)]), max_size=8))
    def test_any_bytes_at_all(self, helper_socket: Path, driver: FakeLimits, noise: list[bytes]) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(str(helper_socket))
            try:
                for part in noise:
                    client.sendall(part)
            except (BrokenPipeError, ConnectionResetError):
                pass  # it has had enough
        assert _works(helper_socket)
        until(lambda: driver.devices["GPU-1"].requested == 500.0)


def _works(path: Path) -> bool:
    try:
        channel = Connection.to(path)
    except HelperGoneError:
        return False
    try:
        return bool(channel.call(Show())["ok"])
    except ControlError:
        return False
    finally:
        channel.close()


DEVICE = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}", fullmatch=True)
REQUESTS = st.one_of(
    st.builds(
        Acquire,
        devices=st.lists(DEVICE, min_size=1, max_size=5).map(tuple),
        cap=st.floats(0.1, 1e6),
        lifetime=st.floats(1e-3, 2.5e6),
        kept=st.booleans(),
    ),
    st.builds(Adjust, lease=st.just("ab12"), sm_clock=st.floats(1.0, 1e11)),
    st.builds(Clear, devices=st.lists(DEVICE, min_size=1, max_size=5).map(tuple)),
    st.builds(Show),
)


@given(REQUESTS)
def test_a_request_survives_its_own_encoding(request: Request) -> None:
    line = encode(request)
    assert parse_request(line) == request
    assert line.count(b"\n") == 1


def test_who_is_not_named_is_told_so(limiter: Limiter) -> None:
    helper = PowerHelper(limiter, Access, MonotonicClock())
    helper._access = _NobodyAccess()
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=helper.serve, kwargs={"connections": [theirs], "linger": False})
    thread.start()
    ours.settimeout(10.0)
    assert "no entry of /etc/energyopt/power.toml names them" in answer(ours)["error"]
    assert answer(ours) == {}
    ours.close()
    thread.join(10.0)
    assert not thread.is_alive()


class _NobodyAccess(Access):
    def knows(self, peer: Peer) -> bool:
        return False


def test_a_reload_takes_the_new_list_and_a_broken_one_leaves_the_old(limiter: Limiter) -> None:
    lists: list[Access | ConfigError] = [
        Access(),
        Access(longest=Seconds(5.0)),
        ConfigError("power.toml is not valid"),
    ]

    def load() -> Access:
        found = lists.pop(0)
        if isinstance(found, ConfigError):
            raise found
        return found

    helper = PowerHelper(limiter, load, MonotonicClock())
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=helper.serve, kwargs={"connections": [theirs]})
    thread.start()
    channel = Connection(ours)
    try:
        channel.call(HELD)
        while lists:
            before = len(lists)
            helper.reload()
            until(lambda: len(lists) < before)  # noqa: B023 - called before the loop goes on
            with pytest.raises(ControlError, match="5 s at most"):
                channel.call(HELD)
    finally:
        channel.close()
        helper.stop()
        thread.join(10.0)
    assert not thread.is_alive()


class TestAllowance:
    def test_by_name_and_by_number(self) -> None:
        root = Allowance(users=("root",))
        assert root.names(0)
        assert not root.names(70_001)
        assert Allowance(users=(70_001,)).names(70_001)

    def test_the_lowest_floor_that_applies_counts(self) -> None:
        access = Access(
            allow=(
                Allowance(users=(70_001,), lowest_cap=Watts(400.0)),
                Allowance(users=(70_001,), devices=("GPU-1",), lowest_cap=Watts(250.0)),
            )
        )
        peer, low = Peer(1, 70_001), Acquire(devices=("GPU-1",), cap=Watts(300.0), lifetime=Seconds(1.0)).power
        access.check(peer, "GPU-1", low)
        with pytest.raises(ControlError, match="400 W or above"):
            access.check(peer, "GPU-2", low)
