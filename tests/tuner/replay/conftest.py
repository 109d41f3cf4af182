"""A fake server and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tuner.replay.fake import FakeServer
from tuner.replay.http import Endpoint, HttpClient


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with FakeServer().serving() as running:
        yield running


@pytest.fixture
async def client(server: FakeServer) -> AsyncIterator[HttpClient]:
    async with HttpClient(Endpoint(server.url, "fake")) as opened:
        yield opened
