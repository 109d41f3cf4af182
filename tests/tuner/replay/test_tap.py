"""The tap: bytes pass as they are, and its reading of an answer is the client's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from energyopt.core.clock import MonotonicClock
from energyopt.core.errors import EngineError
from energyopt.core.records import FinishReason
from energyopt.core.units import Seconds
from tuner.replay.ask import Ask, Prompt
from tuner.replay.fake import FakeServer, behaving
from tuner.replay.http import Endpoint, HttpClient
from tuner.replay.tap import Tap

CLOCK = MonotonicClock()


@pytest.fixture
async def tapped(server: FakeServer) -> AsyncIterator[tuple[Tap, str]]:
    tap = Tap(server.url, CLOCK, {"/page": lambda: "of the tap"})
    async with tap.serving() as url:
        yield tap, url


def ask(name: str, tokens: int = 6) -> Ask:
    return Ask(name, "s", Prompt(messages=({"role": "user", "content": "one two three"},)), tokens, CLOCK.now())


async def test_the_taps_reading_is_the_clients(server: FakeServer, tapped: tuple[Tap, str]) -> None:
    tap, url = tapped
    behaving(server, itl=0.002)
    async with HttpClient(Endpoint(url, "fake"), CLOCK) as client:
        replies = [await client.send(ask(name)) for name in ("a", "b")]
    assert [reply.text for reply in tap.replies] == [reply.text for reply in replies]
    for mine, theirs in zip(tap.replies, replies, strict=True):
        assert mine.counted
        assert mine.record.output_tokens == theirs.record.output_tokens == 6
        assert mine.record.prompt_tokens == theirs.record.prompt_tokens
        assert theirs.record.arrival <= mine.record.arrival
        assert mine.record.end <= theirs.record.end
        assert mine.record.session == "s"
        asked = tap.asks[mine.record.request_id]
        assert (asked.output_tokens, mine.record.request_id.split("/")[0]) == (6, theirs.record.request_id)
    recording = tap.recording()
    assert recording.window.start == tap.replies[0].record.arrival
    assert tap.replies[-1].record.end in recording.window


async def test_what_is_no_streamed_answer_passes_unread(server: FakeServer, tapped: tuple[Tap, str]) -> None:
    tap, url = tapped
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{url}/v1/models") as through, session.get(f"{server.url}/v1/models") as straight:
            assert await through.read() == await straight.read()
            assert through.headers["content-type"] == straight.headers["content-type"]
        async with session.get(f"{url}/page") as page:
            assert await page.text() == "of the tap"
        behaving(server, status=503, retry_after=3)
        async with session.post(f"{url}/v1/chat/completions", json={"stream": True, "messages": []}) as refused:
            assert (refused.status, refused.headers["retry-after"]) == (503, "3")
    assert tap.replies == []
    with pytest.raises(EngineError, match="Not one streamed answer"):
        tap.recording()


async def test_a_client_that_leaves_has_left(server: FakeServer, tapped: tuple[Tap, str]) -> None:
    tap, url = tapped
    behaving(server, itl=0.02)
    async with HttpClient(Endpoint(url, "fake"), CLOCK) as client:
        leaving = Ask("a", "s", ask("a").prompt, 500, CLOCK.now(), give_up=Seconds(0.2))
        assert (await client.send(leaving)).left
    async with asyncio.timeout(10):
        while not tap.replies:  # noqa: ASYNC110 - the tap sees it at its next write
            await asyncio.sleep(0.01)
    (reply,) = tap.replies
    assert reply.left
    assert reply.record.finish_reason is FinishReason.ABORT
    assert 0 < len(reply.record.token_times) < 500


async def test_a_stream_that_breaks_is_a_failure_for_both(server: FakeServer, tapped: tuple[Tap, str]) -> None:
    tap, url = tapped
    async with HttpClient(Endpoint(url, "fake"), CLOCK) as client:
        behaving(server, cut_after=3)
        cut = await client.send(ask("a", 8))
        behaving(server, cut_after=None, fail_after=2)
        told = await client.send(ask("b", 8))
    assert cut.record.failed
    assert told.record.failed
    assert [reply.record.failed for reply in tap.replies] == [True, True]
    assert [len(reply.record.token_times) for reply in tap.replies] == [3, 2]
    assert tap.recording().errors == {"EngineError": 2}


async def test_a_server_that_is_not_there_is_a_failure() -> None:
    tap = Tap("http://127.0.0.1:9", CLOCK)
    async with tap.serving() as url, HttpClient(Endpoint(url, "fake"), CLOCK) as client:
        reply = await client.send(ask("a"))
    assert "502" in str(reply.error)
    assert [one.record.failed for one in tap.replies] == [True]
