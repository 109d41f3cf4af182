"""A request that has a time limit ends in time: with what it has, or with a typed error."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 400}


@pytest.fixture
def slow(serve_it: Any, make_engine: Any) -> Any:
    """A server whose engine takes 20 ms a step: 8 s for a whole answer."""
    return serve_it(engine=make_engine(0.02))


def test_the_answer_so_far_says_that_it_is_not_whole(slow: Any) -> None:
    start = time.monotonic()
    reply = slow.http.post(CHAT, json={**BODY, "timeout": 0.3}).json()
    assert time.monotonic() - start < 3
    assert reply["choices"][0]["finish_reason"] == "deadline"
    assert 0 < len(reply["choices"][0]["message"]["content"]) == reply["usage"]["completion_tokens"] < 100
    assert slow.services.engine.stats().finished_by_reason == {"deadline": 1}


def test_a_stream_ends_with_the_reason_and_the_usage(slow: Any) -> None:
    body = {**BODY, "stream": True, "stream_options": {"include_usage": True}}
    text = slow.http.post(CHAT, json=body, headers={"x-request-timeout": "0.3"}).text
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-3])["choices"][0]["finish_reason"] == "deadline"
    assert json.loads(events[-2])["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("stream", [True, False])
def test_no_token_in_time_is_a_typed_error(serve_it: Any, make_engine: Any, stream: bool) -> None:
    """The request waits: every seat is taken."""
    served = serve_it(engine=make_engine(0.02, max_num_seqs=1))
    with served.http.stream("POST", CHAT, json={**BODY, "stream": True}) as first:
        lines = first.iter_lines()  # kept: a generator that goes away closes the response
        assert next(lines).startswith("data: ")
        reply = served.http.post(CHAT, json={**BODY, "stream": stream, "timeout": 0.1})
    assert reply.status_code == 504
    assert reply.json()["error"]["code"] == "deadline_exceeded"
    assert "0.1 s" in reply.json()["error"]["message"]


async def test_a_header_that_is_no_number_is_refused(in_process: Any) -> None:
    async with in_process() as http:
        for value in ("soon", "1e999", "-1", "0"):
            reply = await http.post(CHAT, json=BODY, headers={"x-request-timeout": value})
            assert reply.status_code == 400, value


async def test_an_echo_comes_before_the_answer(in_process: Any) -> None:
    body = {"prompt": [[97, 98], [99, 100]], "max_tokens": 2, "n": 2, "echo": True}
    async with in_process() as http:
        whole = (await http.post("/v1/completions", json=body)).json()
        text = (await http.post("/v1/completions", json={**body, "stream": True})).text
    assert [choice["text"][:2] for choice in whole["choices"]] == ["ab", "ab", "cd", "cd"]
    assert all(len(choice["text"]) == 4 for choice in whole["choices"])
    parts: dict[int, str] = {}
    for event in text.split("\n\n")[:-2]:
        for choice in json.loads(event.removeprefix("data: "))["choices"]:
            parts[choice["index"]] = parts.get(choice["index"], "") + choice["text"]
    assert [parts[index][:2] for index in range(4)] == ["ab", "ab", "cd", "cd"]
    assert all(len(part) == 4 for part in parts.values())
