"""The boards as they ship and as they would be generated now, and a Grafana to send them to."""

from __future__ import annotations

import socket
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from dashboards.catalog import PLUGINS
from dashboards.double.server import FakeGrafana
from dashboards.shipped import shipped_boards


@pytest.fixture(scope="session")
def generated() -> dict[str, str]:
    """Every generated file, made anew."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the SDK warns that its classic model has a successor
        from dashboards.generate import texts
    return texts()


@pytest.fixture(scope="session", params=list(PLUGINS))
def boards(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """The shipped boards, of either kind of database."""
    return shipped_boards(request.param)


@pytest.fixture
def fake() -> FakeGrafana:
    return FakeGrafana()


@pytest.fixture
def url(fake: FakeGrafana) -> Iterator[str]:
    """The fake on a loopback port."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(fake.app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(10)
    listener.close()
