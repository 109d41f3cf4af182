"""Streams: the same text as the whole reply, errors told in the stream, and nothing after them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.call import Call, Job
from api.fake import ScriptedEngine
from api.shape_chat import ChatShape
from api.shapes import CompletionShape
from energyopt.core.errors import EngineError
from energyopt.core.records import FinishReason
from engine.fake import FakeTokenizer
from engine.output import Output
from engine.request import SamplingParams, TokenLogprobs

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
END = Output("", "!", (33,), finish_reason=FinishReason.STOP)


def events(body: str) -> list[tuple[str | None, str]]:
    """Event name and data of every server-sent event."""
    found = []
    for block in body.split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        found.append((fields.get("event"), fields["data"]))
    return found


async def stream_of(in_process: Any, script: list[Output | Exception], **body: Any) -> list[tuple[str | None, str]]:
    engine = ScriptedEngine(script)
    async with in_process(engine=engine) as http:
        reply = await http.post(CHAT, json={"messages": HELLO, "stream": True, **body})
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["cache-control"] == "no-cache"
    assert "content-length" not in reply.headers
    return events(reply.text)


async def test_the_frames_of_a_stream(in_process: Any) -> None:
    frames = await stream_of(
        in_process, [Output("", "Hi", (72, 105)), END], stream_options={"include_usage": True}, max_tokens=4
    )
    assert frames[-1] == (None, "[DONE]")
    chunks = [json.loads(data) for _, data in frames[:-1]]
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {"content": "Hi"}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {"content": "!"}, "logprobs": None, "finish_reason": "stop"}],
        [],
    ]
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None, None, None]
    assert chunks[-1]["usage"]["completion_tokens"] == 3
    heads = [{name: chunk[name] for name in ("id", "object", "created", "model")} for chunk in chunks]
    assert all(head == heads[0] for head in heads)
    assert heads[0]["object"] == "chat.completion.chunk"


async def test_an_output_without_text_makes_no_chunk(in_process: Any) -> None:
    frames = await stream_of(in_process, [Output("", "", (200,)), Output("", "é", (201,)), END])
    assert len(frames) == 4


FAILURES = [
    (EngineError("the device is gone"), "the device is gone", "server_error"),
    (ValueError("secret path"), "failed to handle", "server_error"),
    (Output("", "", (), finish_reason=FinishReason.ABORT), "can be sent again", "service_unavailable_error"),
    (Output("", "", (), finish_reason=FinishReason.ERROR), "engine failed", "server_error"),
]


@pytest.mark.parametrize(("failure", "word", "kind"), FAILURES)
@pytest.mark.parametrize("n", [1, 2])
async def test_a_late_failure_is_an_error_event_and_the_end(
    in_process: Any, failure: Output | Exception, word: str, kind: str, n: int
) -> None:
    frames = await stream_of(in_process, [Output("", "Hi", (72,)), failure], n=n)
    name, data = frames[-1]
    assert name == "error"
    assert word in json.loads(data)["error"]["message"]
    assert json.loads(data)["error"]["type"] == kind
    assert "secret" not in data
    assert all(data != "[DONE]" for _, data in frames)


@pytest.mark.parametrize(("failure", "word", "kind"), FAILURES)
async def test_an_early_failure_has_a_status(
    in_process: Any, failure: Output | Exception, word: str, kind: str
) -> None:
    async with in_process(engine=ScriptedEngine([failure])) as http:
        reply = await http.post(CHAT, json={"messages": HELLO, "stream": True})
    assert reply.status_code == (503 if kind == "service_unavailable_error" else 500)
    assert word in reply.json()["error"]["message"]


async def test_a_stream_that_just_stops_is_an_error(in_process: Any) -> None:
    frames = await stream_of(in_process, [Output("", "Hi", (72,))])
    assert frames[-1][0] == "error"


async def test_the_other_choices_are_aborted_when_one_fails(in_process: Any) -> None:
    engine = ScriptedEngine([Output("", "Hi", (72,)), EngineError("gone")])
    async with in_process(engine=engine) as http:
        reply = await http.post(CHAT, json={"messages": HELLO, "n": 3})
    assert reply.status_code == 500
    assert len(engine.aborted) == 3


TEXTS = st.lists(st.text(max_size=8), min_size=1, max_size=6)


@given(texts=TEXTS, chat=st.booleans(), logprobs=st.booleans(), model=st.text(max_size=5))
@settings(max_examples=60, deadline=None)
def test_joined_chunks_equal_the_reply(texts: list[str], chat: bool, logprobs: bool, model: str) -> None:
    params = SamplingParams(logprobs=2 if logprobs else None)
    job = Job("r", [1], params, first=True)
    call = Call("id", model, (job,), None, include_usage=True)
    entry = (TokenLogprobs(-0.5, ((97, -0.5), (98, float("-inf")))),) if logprobs else ()
    outputs = [Output("r", text, (97,), entry) for text in texts]
    outputs[-1] = Output("r", texts[-1], (97,), entry, FinishReason.LENGTH)

    def shape() -> ChatShape | CompletionShape:
        return (ChatShape if chat else CompletionShape)(call, FakeTokenizer())

    assert shape().chunk(0, outputs[0], None) in (shape().full_chunk(0, outputs[0], None), b"")
    streaming = shape()
    raw = b"".join([streaming.opening(), *(streaming.chunk(0, output, None) for output in outputs)])
    chunks = [json.loads(data)["choices"][0] for _, data in events(raw.decode())]
    whole = json.loads(shape().reply([outputs], {}))["choices"][0]
    text = "".join(chunk["delta"].get("content", "") if chat else chunk["text"] for chunk in chunks)
    assert text == "".join(texts) == (whole["message"]["content"] if chat else whole["text"])
    assert chunks[-1]["finish_reason"] == whole["finish_reason"] == "length"
    if logprobs:
        name = "content" if chat else "tokens"
        parts = [entry for chunk in chunks if chunk["logprobs"] for entry in chunk["logprobs"][name]]
        assert parts == whole["logprobs"][name]
        assert len(parts) == len(texts)


async def test_many_streams_at_once_keep_apart(in_process: Any) -> None:
    async with in_process() as http:

        async def ask(prompt: str, stream: bool) -> str:
            body = {"prompt": prompt, "max_tokens": 20, "temperature": 0, "stream": stream}
            reply = await http.post("/v1/completions", json=body)
            if not stream:
                return str(reply.json()["choices"][0]["text"])
            chunks = [json.loads(data) for _, data in events(reply.text)[:-1]]
            return "".join(chunk["choices"][0]["text"] for chunk in chunks)

        prompts = [f"prompt {index}" for index in range(8)]
        alone = [await ask(prompt, stream=False) for prompt in prompts]
        assert await asyncio.gather(*(ask(prompt, stream=True) for prompt in prompts)) == alone
        assert len(set(alone)) == 8
