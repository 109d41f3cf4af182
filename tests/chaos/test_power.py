"""Limits and their helper on a bad day: what was found is back within one lease, or as soon as that can be."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from energyopt.core.errors import ControlError
from energyopt.core.units import Hertz, Seconds, Watts
from telemetry.control.client import Connection, HelperGoneError
from telemetry.control.protocol import Acquire
from tests.chaos.faults import SmallDisk, WallClock
from tests.chaos.programs import Program, within

Start = Callable[..., Program]
GPU = "GPU-00000000-0000-4000-8000-000000000000"
LEASE = 6.0
HELD = Acquire(devices=(GPU,), cap=Watts(300.0), sm_clock=Hertz(1.2e9), lifetime=Seconds(LEASE))
FOUND, SET = (500_000, 0), (300_000, 1200)
pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="without root no limit may be set"),
]


class Helper:
    """``energyopt power-helper`` over the stub driver."""

    def __init__(self, start: Start, driver: Any, folder: Path, **extra: str) -> None:
        self.socket, self._gpu = folder / "power.sock", driver.state.gpus[0]
        words = ("power-helper", "--socket", str(self.socket), "--config", str(folder / "power.toml"))
        self.program = start(*words, environment={**driver.environment, **extra})
        self.connect().close()

    @property
    def limits(self) -> tuple[int, int]:
        return self._gpu.requested_mw, self._gpu.clock_high

    def connect(self) -> Connection:
        for _ in within(60.0):
            assert self.program.alive, self.program.said
            try:
                return Connection.to(self.socket)
            except HelperGoneError:
                pass
        raise AssertionError("the helper does not listen")

    def until(self, wanted: tuple[int, int], seconds: float) -> None:
        for _ in within(seconds, 0.02):
            if self.limits == wanted:
                return
        raise AssertionError(f"limits are {self.limits}, not {wanted}: {self.program.said}")


@pytest.fixture
def helper(start: Start, driver: Any, tmp_path: Path) -> Iterator[Helper]:
    made = Helper(start, driver, tmp_path)
    yield made
    assert made.program.end() == 0
    assert made.limits == FOUND


def test_a_holder_that_stands_still_loses_its_lease(helper: Helper) -> None:
    """Nobody renews: the time of the lease is the longest that a limit outlives its holder."""
    channel = helper.connect()
    channel.call(HELD)
    assert helper.limits == SET
    helper.until(FOUND, LEASE + 3.0)
    channel.close()


def test_stopped_for_longer_than_a_lease_it_puts_back_when_it_goes_on(helper: Helper) -> None:
    channel = helper.connect()
    channel.call(HELD)
    helper.program.send(signal.SIGSTOP)
    time.sleep(LEASE + 1.0)
    assert helper.limits == SET
    helper.program.send(signal.SIGCONT)
    helper.until(FOUND, 3.0)
    channel.close()


def test_killed_it_puts_back_at_its_next_start(helper: Helper) -> None:
    channel = helper.connect()
    channel.call(HELD)
    helper.program.kill()
    channel.close()
    assert helper.limits == SET
    helper.program.start()
    helper.until(FOUND, 30.0)


def test_the_driver_fails_while_a_limit_is_to_go_back(helper: Helper, driver: Any) -> None:
    channel = helper.connect()
    channel.call(HELD)
    driver.state.gpus[0].fail("set_limit", 999)
    channel.close()
    time.sleep(2.0)
    assert helper.limits[0] == SET[0], "the driver did not fail: nothing was proven"
    driver.state.gpus[0].fail("set_limit", 0)
    helper.until(FOUND, 30.0)


def test_without_room_for_its_journal_it_changes_nothing(
    start: Start, driver: Any, tmp_path: Path, small_disk: SmallDisk
) -> None:
    helper = Helper(start, driver, tmp_path, ENERGYOPT_POWER_JOURNAL=str(small_disk.folder / "journal"))
    small_disk.fill()
    channel = helper.connect()
    with pytest.raises(ControlError):
        channel.call(HELD)
    assert helper.limits == FOUND
    small_disk.empty()
    channel.call(HELD)
    assert helper.limits == SET
    small_disk.fill()  # what was written is enough to put back
    channel.close()
    helper.until(FOUND, 10.0)
    small_disk.empty()
    assert helper.program.end() == 0


def test_the_clock_on_the_wall_jumps(start: Start, driver: Any, tmp_path: Path, wall_clock: WallClock) -> None:
    """A lease is as long as it was asked for, whatever the wall says."""
    helper = Helper(start, driver, tmp_path, **wall_clock.environment)
    channel = helper.connect()
    for jump in (86_400, -86_400):
        channel.call(HELD)
        wall_clock.jump(jump)
        time.sleep(1.0)
        assert helper.limits == SET, "the jump ended a lease"
        helper.until(FOUND, LEASE + 3.0)
    channel.close()
    assert helper.program.end() == 0
