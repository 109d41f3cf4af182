"""A body that does not come is not waited for; a client that stays silent behind its body is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from api.errors import BodyTooSlowError, problem_of
from api.middleware import BodyLimitMiddleware, in_time
from energyopt.core.units import Seconds

SOON = Seconds(0.02)


async def test_a_body_that_stops_halfway_is_refused_and_its_connection_with_it() -> None:
    pieces = [{"type": "http.request", "body": b"ab", "more_body": True}]
    read: list[bytes] = []

    async def receive() -> Any:
        return pieces.pop() if pieces else await asyncio.Event().wait()

    async def reads_all(scope: Any, receive: Any, send: Any) -> None:
        while True:
            read.append((await receive())["body"])

    limited = BodyLimitMiddleware(reads_all, limit=10, seconds=SOON)
    with pytest.raises(BodyTooSlowError, match=r"not complete within 0\.02 s") as refusal:
        await limited({"type": "http", "headers": []}, receive, None)  # type: ignore[arg-type]
    assert read == [b"ab"]
    problem = problem_of(refusal.value)
    assert (problem.status, problem.code, problem.headers) == (408, "request_too_slow", {"connection": "close"})


async def test_behind_its_body_a_client_may_wait_for_ever() -> None:
    gone = asyncio.Event()
    pieces = [{"type": "http.request", "body": b"ab", "more_body": False}]

    async def receive() -> Any:
        if pieces:
            return pieces.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    timed = in_time(receive, SOON)
    assert (await timed())["body"] == b"ab"
    waiting = asyncio.ensure_future(timed())
    done, _ = await asyncio.wait([waiting], timeout=3 * SOON)
    assert not done
    gone.set()
    assert await waiting == {"type": "http.disconnect"}
