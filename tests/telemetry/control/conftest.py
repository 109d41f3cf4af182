"""A helper in a thread over a driver in memory, and clients of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from energyopt.core.clock import FakeClock, MonotonicClock
from energyopt.core.units import Seconds
from telemetry.control.access import Access
from telemetry.control.client import Connection
from telemetry.control.fake import FakeLimits
from telemetry.control.helper import PowerHelper
from telemetry.control.journal import Journal
from telemetry.control.leased import LeasedPower
from telemetry.control.limits import Limiter


@pytest.fixture
def driver() -> FakeLimits:
    return FakeLimits(("GPU-1", "GPU-2"))


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


@pytest.fixture
def limiter(driver: FakeLimits, journal: Journal) -> Limiter:
    return Limiter(driver, journal, clock=FakeClock())


@pytest.fixture
def helper_socket(limiter: Limiter, tmp_path: Path) -> Iterator[Path]:
    """Where a helper listens that ends with the test. Root may do everything, and the tests' own user is like root."""
    path = tmp_path / "power.sock"
    helper = PowerHelper(limiter, Access, MonotonicClock())
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(16)
        thread = threading.Thread(target=helper.serve, kwargs={"listener": listener})
        thread.start()
        yield path
        helper.stop()
        thread.join(10.0)
        assert not thread.is_alive()


@pytest.fixture
def connect(helper_socket: Path) -> Callable[[], Connection]:
    return lambda: Connection.to(helper_socket)


@pytest.fixture
def leased(connect: Callable[[], Connection]) -> Callable[..., LeasedPower]:
    """Limits of devices through the helper."""

    def build(*devices: str, lifetime: float = 10.0) -> LeasedPower:
        return LeasedPower(devices or ("GPU-1", "GPU-2"), connect, lifetime=Seconds(lifetime))

    return build
