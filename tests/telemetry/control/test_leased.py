"""Holders that live on when their helper does not."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import PowerConfig
from energyopt.core.errors import ControlError
from energyopt.core.units import Hertz, Seconds, Watts
from telemetry.control.access import Access
from telemetry.control.client import Connection, HelperGoneError
from telemetry.control.fake import FakeLimits
from telemetry.control.helper import PowerHelper
from telemetry.control.leased import LeasedPower
from telemetry.control.limits import Limiter

CAP, LOWER = PowerConfig(cap=Watts(400.0)), PowerConfig(cap=Watts(300.0), sm_clock=Hertz(1e9))
PATIENT = Seconds(1000.0)
"""A lifetime in which the renewing thread does nothing: the test calls ``renew`` when it wants to."""


class Helpers:
    """Starts a helper for each connection, as ``spawn_helper`` does, and can end the newest."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._running: list[tuple[PowerHelper, threading.Thread]] = []
        self.refuse: ControlError | None = None

    def __call__(self) -> Connection:
        if self.refuse is not None:
            raise self.refuse
        ours, theirs = socket.socketpair()
        helper = PowerHelper(self._limiter, Access, MonotonicClock())
        thread = threading.Thread(target=helper.serve, kwargs={"connections": [theirs], "linger": False})
        thread.start()
        self._running.append((helper, thread))
        return Connection(ours)

    def end(self) -> None:
        helper, thread = self._running[-1]
        helper.stop()
        thread.join(10.0)
        assert not thread.is_alive()

    def join(self) -> None:
        for _, thread in self._running:
            thread.join(10.0)
            assert not thread.is_alive(), "a helper outlives its last lease and its client"


@pytest.fixture
def helpers(limiter: Limiter) -> Iterator[Helpers]:
    made = Helpers(limiter)
    yield made
    made.join()


def test_a_lease_is_taken_anew_from_the_next_helper_with_the_limits_asked_for_last(
    driver: FakeLimits, helpers: Helpers
) -> None:
    device = driver.devices["GPU-1"]
    with LeasedPower(("GPU-1",), helpers, lifetime=PATIENT).held(CAP) as lease:
        lease.adjust(LOWER)
        assert (device.requested, device.clock) == (300.0, 1e9)
        assert lease.remaining > 990.0
        helpers.end()
        assert (device.requested, device.clock) == (500.0, None)
        lease.renew()
        assert lease.lost
        assert lease.remaining == 0.0
        lease.renew()
        assert not lease.lost
        assert (device.requested, device.clock) == (300.0, 1e9)
    assert (device.requested, device.clock) == (500.0, None)


def test_while_no_helper_answers_new_limits_are_remembered(driver: FakeLimits, helpers: Helpers) -> None:
    with LeasedPower(("GPU-1",), helpers, lifetime=PATIENT).held(CAP) as lease:
        helpers.end()
        helpers.refuse = HelperGoneError("No power helper listens.")
        with pytest.raises(HelperGoneError):
            lease.adjust(LOWER)
        lease.renew()
        assert lease.lost == "No power helper listens."
        helpers.refuse = None
        lease.renew()
        assert driver.devices["GPU-1"].requested == 300.0
    assert driver.devices["GPU-1"].requested == 500.0


def test_a_refused_change_keeps_what_was_asked_before(driver: FakeLimits, helpers: Helpers) -> None:
    with LeasedPower(("GPU-1",), helpers, lifetime=PATIENT).held(CAP) as lease:
        with pytest.raises(ControlError, match="between 200 W and 700 W"):
            lease.adjust(PowerConfig(cap=Watts(9.0)))
        assert lease.power == CAP
        assert lease.lost is None
        assert driver.devices["GPU-1"].requested == 400.0


def test_a_helper_that_is_gone_at_the_end_is_no_error(driver: FakeLimits, helpers: Helpers) -> None:
    with LeasedPower(("GPU-1",), helpers, lifetime=PATIENT).applied(CAP):
        helpers.end()
    assert driver.devices["GPU-1"].requested == 500.0


def test_the_thread_renews(driver: FakeLimits, helpers: Helpers) -> None:
    with LeasedPower(("GPU-1",), helpers, lifetime=Seconds(0.4)).held(CAP):
        MonotonicClock().sleep(Seconds(1.2))
        assert driver.devices["GPU-1"].requested == 400.0


def test_what_someone_else_set_is_told(driver: FakeLimits, helpers: Helpers) -> None:
    with LeasedPower(("GPU-1",), helpers, lifetime=PATIENT).held(CAP) as lease:
        driver.devices["GPU-1"].requested = Watts(444.0)
        lease.adjust(LOWER)
        assert lease.foreign == ("GPU-1",)
    assert driver.devices["GPU-1"].requested == 444.0


@pytest.mark.parametrize("reply", [b"", b"\n", b"null\n", b'{"ok": 1}\n', b"{" * 300_000, b"[" * 100_000 + b"\n"])
def test_whatever_answers_in_no_known_form_is_not_believed(reply: bytes) -> None:
    ours, theirs = socket.socketpair()

    def speak() -> None:
        with theirs:
            theirs.recv(65_536)
            with contextlib.suppress(OSError):  # cut off, as it should be
                theirs.sendall(reply)

    thread = threading.Thread(target=speak)
    thread.start()
    with pytest.raises(HelperGoneError):
        LeasedPower(("GPU-1",), lambda: Connection(ours), lifetime=PATIENT).applied(CAP).__enter__()
    thread.join(10.0)
